"""What changes the logits of a row before a token is drawn: penalties, biases, ids ruled out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LogitRules(NamedTuple):
    """The rules of all rows, by table_idx, R of them. Words hold the bits of 32 ids, lowest first.

    Every id listed is in the vocabulary; a row lists no id twice among its biases.
    """

    is_active: Tensor  # bool [R]: false where no rule below changes anything
    repetition: (
        Tensor  # float32 [R]: logits of ids seen are divided, negative ones multiplied; 1: off
    )
    presence: Tensor  # float32 [R]: taken from the logits of ids that were sampled; 0: off
    frequency: Tensor  # float32 [R]: the same, each time that the id was sampled; 0: off
    prompt_words: Tensor  # int32 [R, ceil(vocab / 32)]: which ids the prompt has
    output_counts: Tensor  # int16 or int32 [R, vocab]: how often each id was sampled
    bias_ids: Tensor  # int32 [R, most biases]
    biases: Tensor  # float32 [R, most biases]: added
    num_biases: Tensor  # int32 [R]
    stop_ids: Tensor  # int32 [R, most stop ids]
    num_stop_ids: Tensor  # int32 [R]
    min_position: Tensor  # int32 [R]: before this position, no stop id is possible


class Adjusted(NamedTuple):
    """Logits after the rules, of the rows that have any."""

    logits: Tensor  # float32 [N, vocab]; whatever it was where a row has no rule
    is_used: Tensor  # bool [N]: whether the row is to be read here


def adjust_logits(
    logits: Tensor,
    adjusted: Adjusted,
    rules: LogitRules,
    rows: Tensor,
    position: Tensor,
    allowed_words: Tensor | None = None,
    is_masked: Tensor | None = None,
) -> None:
    """Fills `adjusted` from `logits` [N, vocab]; row i is that of table_idx `rows[i]`.

    The order: repetition (Keskar et al. 2019, arXiv:1909.05858), of the ids of prompt and output;
    frequency and presence, of the output; biases; then what is impossible becomes -inf: stop ids
    where `position` [N], that of the token to draw, is below `min_position`, and ids whose bit in
    `allowed_words` int32 [N, ceil(vocab / 32)] is 0, in the rows that `is_masked` [N] names. Both
    or neither of the last two are given.
    """
    num_rows, vocab = logits.shape
    masked = torch.zeros(num_rows, dtype=torch.bool, device=logits.device)
    masked = masked if is_masked is None else is_masked.bool()
    active = rules.is_active.bool()[rows]
    adjusted.is_used.copy_(active | masked)
    for i in adjusted.is_used.nonzero()[:, 0].tolist():
        out = logits[i].to(torch.float32, copy=True)
        if active[i]:
            _apply(rules, int(rows[i]), int(position[i]), out)
        if allowed_words is not None and masked[i]:
            out[~_bits(allowed_words[i], vocab)] = -torch.inf
        adjusted.logits[i] = out


def _apply(rules: LogitRules, row: int, position: int, out: Tensor) -> None:
    """Applies one row's own rules to its logits `out` [vocab], in place."""
    counts = rules.output_counts[row].float()
    seen = _bits(rules.prompt_words[row], len(out)) | (counts > 0)
    factor = rules.repetition[row]
    out.copy_(torch.where(seen, torch.where(out > 0, out / factor, out * factor), out))
    out -= rules.frequency[row] * counts + rules.presence[row] * (counts > 0)
    num_biases = int(rules.num_biases[row])
    out[rules.bias_ids[row, :num_biases].long()] += rules.biases[row, :num_biases]
    if position < int(rules.min_position[row]):
        out[rules.stop_ids[row, : int(rules.num_stop_ids[row])].long()] = -torch.inf


def _bits(words: Tensor, vocab: int) -> Tensor:
    """Bool [vocab] from its int32 words."""
    bits = words[:, None] >> torch.arange(32, dtype=torch.int32, device=words.device)
    return (bits & 1).bool().flatten()[:vocab]
