"""Log probabilities of the model's own distribution: at temperature 1, before any rule."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities; NaN, and id 0, in the rows that want none."""

    chosen: Tensor  # float32 [N]: of the token drawn
    top_ids: Tensor  # int64 [N, num_top]: the likeliest, best first; of equals the lower id
    top: Tensor  # float32 [N, num_top]


def logprobs(logits: Tensor, token_ids: Tensor, wanted: Tensor, num_top: int) -> Logprobs:
    """Of `logits` [N, vocab]: `token_ids` [N], and the `num_top` <= vocab likeliest, of the rows
    `wanted` (bool [N]).
    """
    wide = logits.float().log_softmax(dim=-1)
    order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    nothing = ~wanted.bool()[:, None]
    return Logprobs(
        wide.gather(1, token_ids.long()[:, None]).masked_fill(nothing, torch.nan)[:, 0],
        order.masked_fill(nothing, 0),
        wide.gather(1, order).masked_fill(nothing, torch.nan),
    )
