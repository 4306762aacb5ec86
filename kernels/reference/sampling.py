"""Sampling: greedy, temperature, top-k, top-p, min-p, a pure function of a row's logits and
parameters.

Nothing else of the batch reaches a row's draw: its uniform number comes from (seed, choice,
position), sums along a row are running sums, and what is kept is counted in one exact order (logit
descending, then token id ascending).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.logit_rules import Adjusted

GREEDY_TEMPERATURE = 1e-5  # or less: the likeliest token; a logit gap of 1e-3 weighs e**-100 here
_SHORT_WIDTH = 1024  # candidates sorted first: they decide nearly every top-p

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    adjusted: Adjusted | None = None,
    is_broken: Tensor | None = None,
) -> Tensor:
    """One token id a row, int64 [N], from `logits` [N, vocab].

    Of each row, all [N]: `temperature` float32 (0: greedy), `top_k` (0 or >= vocab: off), `top_p`
    float32 (1: off), `seed` int64, `choice`, the absolute `position` that the token will have, and
    `min_p` float32 (0: off; at most 1). With `rows` [N] all of these but `position` are by
    table_idx, and row i is that of `rows[i]`.

    Top-k comes first, top-p is taken of the probability it leaves, min-p drops what is less likely
    than that share of the likeliest, and at least one token stays. Of equal logits the higher id is
    dropped first. Rows that `adjusted` has are read there. `is_broken` bool [N] is set to whether a
    row's logits had a NaN or +inf, or nothing finite: its id means nothing, but is of the
    vocabulary.
    """
    if rows is not None:
        temperature, top_k, top_p = temperature[rows], top_k[rows], top_p[rows]
        seed, choice = seed[rows], choice[rows]
        min_p = None if min_p is None else min_p[rows]
    if adjusted is not None:
        logits = torch.where(adjusted.is_used.bool()[:, None], adjusted.logits, logits.float())
    if is_broken is not None:
        no_number = (logits.isnan() | (logits == torch.inf)).any(dim=-1)
        is_broken.copy_(no_number | (logits == -torch.inf).all(dim=-1))
    ids = logits.argmax(dim=-1)
    drawn = ((temperature > GREEDY_TEMPERATURE) & (top_k != 1)).nonzero()[:, 0]
    if len(drawn) == 0:
        return ids
    kept = logits[drawn].float()
    weights = ((kept - kept.amax(dim=-1, keepdim=True)) / temperature[drawn, None]).exp()
    _drop_unlikely(weights, kept, temperature[drawn], top_k[drawn].long(), top_p[drawn])
    if min_p is not None:
        weights[weights < min_p[drawn, None]] = 0  # the likeliest weighs 1
    ids[drawn] = _invert_cdf(weights, uniform(seed[drawn], choice[drawn], position[drawn]))
    return ids


def uniform(seed: Tensor, choice: Tensor, position: Tensor) -> Tensor:
    """A float32 [N] in [0, 1), a multiple of 2**-24, of each (seed, choice, position)."""
    zero = torch.zeros_like(seed)
    counter = (position.long(), choice.long(), zero, zero)
    first = philox(counter, (seed & _MASK32, (seed >> 32) & _MASK32))[0]
    return (first >> 8).float() * 2.0**-24


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC '11).

    All words are int64 [N] that hold 32 unsigned bits. A product wraps modulo 2**64, which leaves
    both of its halves right.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (right >> 32 & _MASK32) ^ c1 ^ k0, (left >> 32 & _MASK32) ^ c3 ^ k1
        c1, c3 = right & _MASK32, left & _MASK32
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK32, (k1 + _KEY_STEPS[1]) & _MASK32
    return c0, c1, c2, c3


def _drop_unlikely(
    weights: Tensor, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
) -> None:
    """Zeroes, in place, the `weights` [N, vocab] of the tokens that top-k and top-p exclude."""
    vocab = logits.shape[-1]
    has_top_k = (top_k > 0) & (top_k < vocab)
    rows = (has_top_k | (top_p < 1)).nonzero()[:, 0]
    if len(rows) == 0:
        return
    logits, weights_of_rows = logits[rows], weights[rows]
    has_top_k, top_k, top_p = has_top_k[rows], top_k[rows], top_p[rows]
    largest_k = int(torch.where(has_top_k, top_k, 0).max())
    width = min(vocab, max(_SHORT_WIDTH, largest_k))
    while True:
        ordered = logits.topk(width, dim=-1).values  # [R, width], descending
        running = ((ordered - ordered[:, :1]) / temperature[rows, None]).exp().cumsum(dim=-1)
        total = torch.where(
            has_top_k,
            running.gather(1, (torch.where(has_top_k, top_k, 1) - 1)[:, None])[:, 0],
            weights_of_rows.cumsum(dim=-1)[:, -1],
        )
        enough = top_p * total
        limit = torch.where(has_top_k, top_k, vocab)
        limit = torch.where(
            top_p < 1, limit.minimum(1 + (running < enough[:, None]).sum(-1)), limit
        )
        if width == vocab or int(limit.max()) <= width:
            break
        width = vocab
    keep = _first_of_order(logits, ordered, limit.clamp(max=width))
    weights[rows] = torch.where(keep, weights_of_rows, 0)


def _first_of_order(logits: Tensor, ordered: Tensor, count: Tensor) -> Tensor:
    """Which tokens are the first `count` [R] in our order; `ordered` has the logits descending."""
    least = ordered.gather(1, count[:, None] - 1)
    above, equal = logits > least, logits == least
    needed = count - above.sum(dim=-1)
    return above | (equal & (equal.cumsum(dim=-1) <= needed[:, None]))


def _invert_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose running sum of `weights` [N, vocab] exceeds that share of the total.

    An id of the vocabulary for every row: the heaviest where the weights have no finite sum.
    """
    running = weights.cumsum(dim=-1)
    total = running[:, -1:]
    drawn = torch.searchsorted(running, uniforms[:, None] * total, right=True)[:, 0]
    can_draw = (total[:, 0].isfinite()) & (total[:, 0] > 0)
    return torch.where(can_draw, drawn, weights.argmax(dim=-1)).clamp(max=weights.shape[-1] - 1)
