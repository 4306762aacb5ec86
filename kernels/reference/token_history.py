"""Which ids a row's prompt has, and how often each was sampled: what penalties look at."""

from __future__ import annotations

import torch
from torch import Tensor


def mark_prompt(prompt_words: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Sets bit `token_ids[i] % 32` of `prompt_words[rows[i], token_ids[i] // 32]`, in place.

    `prompt_words` is int32 [R, ceil(vocab / 32)]; `rows` and `token_ids` are integer [n].
    """
    num_rows, num_words = prompt_words.shape
    bits = torch.arange(32, dtype=torch.int32, device=prompt_words.device)
    present = ((prompt_words[..., None] >> bits) & 1).view(num_rows, num_words * 32)
    present[rows.long(), token_ids.long()] = 1
    words = (present.view(num_rows, num_words, 32).long() << bits).sum(-1)
    prompt_words.copy_(torch.where(words >= 2**31, words - 2**32, words))


def count_output(output_counts: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Adds 1 to `output_counts[rows[i], token_ids[i]]`, in place; `rows` are distinct.

    `output_counts` is int16 or int32 [R, vocab]; `rows` and `token_ids` are integer [n].
    """
    output_counts[rows.long(), token_ids.long()] += 1
