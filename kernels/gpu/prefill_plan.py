"""Which tile of queries is computed when: longest rows first, and of a row its last tile first.

Rows follow one another, so that the K and V of one are still in the card's cache when the next of
its tiles reads them; what is short comes last, so that no processor ends late. The number of tiles
has a bound that needs no lengths, hence no synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_tuning import PrefillConfig
from kernels.gpu.launch import OVERLAP, begin_program

TILE_WORDS = tl.constexpr(4)  # of a tile's record
_PLAN_ELEMENTS = 4096  # rows times tiles that one program compares


@dataclass(frozen=True)
class PrefillPlan:
    """The order of one step's tiles, for all of its layers.

    `tiles` int32 [bound, 4] has of each tile its first token among the T, the number of its tokens
    (0: nothing to do), the table_idx of its row and the position of its first token.
    """

    config: PrefillConfig
    tiles: Tensor


def plan_prefill(
    table_idxs: Tensor,
    cached_lens: Tensor,
    extend_lens: Tensor,
    *,
    num_tokens: int,
    group: int,
    config: PrefillConfig,
) -> PrefillPlan:
    """Plans P rows of `extend_lens` new tokens, `num_tokens` or fewer together, on the device."""
    num_rows = len(extend_lens)
    tile_tokens = tokens_of_tile(config, group)
    bound = num_tokens // tile_tokens + num_rows
    tiles = torch.empty(bound, int(TILE_WORDS.value), dtype=torch.int32, device=extend_lens.device)
    padded_rows = triton.next_power_of_2(num_rows)
    together = min(64, max(1, _PLAN_ELEMENTS // padded_rows))
    prefill_plan_kernel[(triton.cdiv(bound, together),)](
        table_idxs,
        cached_lens,
        extend_lens,
        tiles,
        num_rows,
        bound,
        BLOCK_Q=tile_tokens,
        BLOCK_P=padded_rows,
        BLOCK_T=together,
        **OVERLAP,
    )
    return PrefillPlan(config, tiles)


def tokens_of_tile(config: PrefillConfig, group: int) -> int:
    """How many new tokens, each with `group` query heads, are computed at once."""
    return max(1, config.tile_rows // group)


@triton.jit(do_not_specialize=["num_rows", "bound"])
def prefill_plan_kernel(
    table_idxs,
    cached_lens,
    extend_lens,
    tiles,
    num_rows,
    bound,
    BLOCK_Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """A program writes the records of BLOCK_T tiles, each where its turn is."""
    begin_program()
    p = tl.arange(0, BLOCK_P)
    inside = p < num_rows
    extends = tl.load(extend_lens + p, mask=inside, other=0).to(tl.int32)
    lens = tl.load(cached_lens + p, mask=inside, other=0).to(tl.int32) + extends
    num_tiles = tl.cdiv(extends, BLOCK_Q)
    ends = tl.cumsum(num_tiles, 0)
    total = tl.sum(num_tiles, 0)

    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    before = ends[None, :] <= t[:, None]  # [BLOCK_T, BLOCK_P]
    row = tl.minimum(tl.sum(before.to(tl.int32), 1), num_rows - 1)
    tile = t - tl.sum(tl.where(before, num_tiles[None, :], 0), 1)
    first_token = tl.sum(tl.where(before, extends[None, :], 0), 1) + tile * BLOCK_Q
    cached_len = tl.load(cached_lens + row).to(tl.int32)
    extend_len = tl.load(extend_lens + row).to(tl.int32)
    seq_len = cached_len + extend_len
    longer = lens[None, :] > seq_len[:, None]
    earlier = (lens[None, :] == seq_len[:, None]) & (p[None, :] < row[:, None])
    ahead = tl.sum(tl.where(longer | earlier, num_tiles[None, :], 0), 1)
    exists = t < total
    turn = tl.where(exists, ahead + tl.cdiv(extend_len, BLOCK_Q) - 1 - tile, t)
    tokens = tl.where(exists, tl.minimum(extend_len - tile * BLOCK_Q, BLOCK_Q), 0)
    record = tiles + turn * TILE_WORDS
    tl.store(record, first_token, mask=t < bound)
    tl.store(record + 1, tokens, mask=t < bound)
    tl.store(record + 2, tl.load(table_idxs + row).to(tl.int32), mask=t < bound)
    tl.store(record + 3, cached_len + tile * BLOCK_Q, mask=t < bound)
