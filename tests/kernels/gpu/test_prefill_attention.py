from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from kernels.gpu.attention_tuning import PrefillConfig
from kernels.gpu.prefill_attention import prefill_attention
from kernels.gpu.prefill_plan import plan_prefill
from kernels.reference import attention as reference
from tests.kernels.gpu.closeness import BOUNDS, assert_near
from tests.kernels.paged_world import paged_world

CONFIG = PrefillConfig(64, 16, num_warps=4, num_stages=2, page_tiles=True)
NUM_KV_HEADS = 2
CACHED_LENS = [0, 16, 5, 47]  # a cached prefix that ends at a page's border, or does not
EXTEND_LENS = [17, 16, 1, 20]
DTYPES = list(BOUNDS)


class Prefill:
    """Rows with cached and new tokens in a NaN-poisoned cache, and prefill attention over them."""

    def __init__(
        self,
        cached_lens: list[int],
        extend_lens: list[int],
        device: torch.device,
        *,
        page_size: int = 16,
        group: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        lens = [a + b for a, b in zip(cached_lens, extend_lens, strict=True)]
        world = paged_world(lens, page_size=page_size, num_kv_heads=NUM_KV_HEADS, head_dim=head_dim)
        self.page_size = page_size
        self.scale = head_dim**-0.5
        self.caches = [cache.to(device, dtype) for cache in (world.k_cache, world.v_cache)]
        self.page_table = world.page_table.to(device)
        order = torch.randperm(len(lens))
        self.table_idxs = order.to(device, torch.int32)
        self.cached_lens = torch.tensor(cached_lens, dtype=torch.int32)[order].to(device)
        self.extend_lens = torch.tensor(extend_lens, dtype=torch.int32)[order].to(device)
        num_heads = NUM_KV_HEADS * group
        self.q = torch.randn(sum(extend_lens), num_heads, head_dim).to(device, dtype)

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.table_idxs, self.cached_lens, self.extend_lens

    def expected(self) -> Tensor:
        q, *caches = (x.double() for x in (self.q, *self.caches))
        return reference.prefill_attention(q, *caches, self.page_table, *self.rows, self.scale)

    def attend(self, config: PrefillConfig = CONFIG, q: Tensor | None = None) -> Tensor:
        """The kernel's result; its output was NaN before."""
        group = self.q.shape[1] // NUM_KV_HEADS
        plan = plan_prefill(*self.rows, num_tokens=len(self.q), group=group, config=config)
        return prefill_attention(
            self.q if q is None else q,
            *self.caches,
            self.page_table,
            *self.rows,
            self.scale,
            out=torch.full_like(self.q, math.nan),
            plan=plan,
            page_size=self.page_size,
        )


@pytest.mark.parametrize(
    ("page_size", "group"),
    [(1, 1), (16, 1), (1, 2), (16, 2), (64, 2), (16, 3), (64, 5), (1, 7), (64, 7), (16, 8)],
)
def test_new_tokens_see_prefix_and_themselves_at_any_page_size_and_group(
    device: torch.device, page_size: int, group: int
) -> None:
    prefill = Prefill(CACHED_LENS, EXTEND_LENS, device, page_size=page_size, group=group)

    assert_near(prefill.attend(), prefill.expected())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_is_right_in_every_dtype(
    device: torch.device, head_dim: int, dtype: torch.dtype
) -> None:
    prefill = Prefill([0, 33], [18, 9], device, group=3, head_dim=head_dim, dtype=dtype)

    assert_near(prefill.attend(), prefill.expected())


@pytest.mark.parametrize(("tile_rows", "tile_len"), [(16, 64), (64, 16), (128, 32)])
@pytest.mark.parametrize("page_tiles", [False, True])
def test_tiles_of_any_shape_give_one_result(
    device: torch.device, tile_rows: int, tile_len: int, page_tiles: bool
) -> None:
    prefill = Prefill([0, 31, 32], [33, 1, 33], device, page_size=64)

    out = prefill.attend(
        replace(CONFIG, tile_rows=tile_rows, tile_len=tile_len, page_tiles=page_tiles)
    )

    assert_near(out, prefill.expected())


def test_reading_one_loc_a_page_gives_the_very_result_of_reading_each_token_s(
    device: torch.device,
) -> None:
    prefill = Prefill(CACHED_LENS, EXTEND_LENS, device)

    assert torch.equal(prefill.attend(), prefill.attend(replace(CONFIG, page_tiles=False)))


def test_rows_of_one_new_token_and_of_none_mix_with_others(device: torch.device) -> None:
    prefill = Prefill([80, 0, 12, 0, 40], [1, 30, 0, 1, 1], device)

    assert_near(prefill.attend(), prefill.expected())


def test_queries_may_be_a_part_of_wider_rows(device: torch.device) -> None:
    prefill = Prefill([3, 0], [11, 20], device)
    wider = torch.full((31, 9, 64), math.nan, device=device)
    wider[:, :4] = prefill.q

    assert torch.equal(prefill.attend(q=wider[:, :4]), prefill.attend())


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_plan_one_is_made_from_the_table(
    device: torch.device, dtype: torch.dtype
) -> None:
    prefill = Prefill([0, 50], [33, 5], device, dtype=dtype)

    out = prefill_attention(
        prefill.q, *prefill.caches, prefill.page_table, *prefill.rows, prefill.scale
    )

    assert_near(out, prefill.expected())


def test_longest_rows_come_first_and_of_a_row_its_last_tile(device: torch.device) -> None:
    table_idxs = torch.arange(4, dtype=torch.int32, device=device)
    cached_lens = torch.tensor([0, 60, 0, 5], dtype=torch.int32, device=device)
    extend_lens = torch.tensor([33, 20, 0, 1], dtype=torch.int32, device=device)
    config = replace(CONFIG, tile_rows=32)

    plan = plan_prefill(table_idxs, cached_lens, extend_lens, num_tokens=54, group=2, config=config)

    first_token, tokens, row, first_position = plan.tiles.T.tolist()
    assert list(zip(row, first_position, first_token, tokens, strict=True))[:6] == [
        (1, 76, 49, 4),
        (1, 60, 33, 16),
        (0, 32, 32, 1),
        (0, 16, 16, 16),
        (0, 0, 0, 16),
        (3, 5, 53, 1),
    ]
    assert len(tokens) == 54 // 16 + 4, "the bound that no length is read for"
    assert tokens[6:] == [0], "nothing to do"


@pytest.mark.parametrize("num_rows", [1, 70, 130])
def test_hundreds_of_rows_are_planned_by_several_programs(
    device: torch.device, num_rows: int
) -> None:
    cached_lens = torch.randint(0, 500, (num_rows,), dtype=torch.int32)
    extend_lens = torch.randint(0, 70, (num_rows,), dtype=torch.int32)
    num_tokens = int(extend_lens.sum())

    plan = plan_prefill(
        torch.arange(num_rows, dtype=torch.int32, device=device),
        cached_lens.to(device),
        extend_lens.to(device),
        num_tokens=num_tokens,
        group=2,
        config=CONFIG,
    )

    planned = [tile for tile in plan.tiles.tolist() if tile[1]]
    covered = sorted(first + i for first, tokens, *_ in planned for i in range(tokens))
    assert covered == list(range(num_tokens))
    first_tokens = (extend_lens.cumsum(0) - extend_lens).tolist()
    for first_token, _, row, first_position in planned:
        assert first_token - first_tokens[row] == first_position - int(cached_lens[row])
    lens = [int(cached_lens[tile[2]] + extend_lens[tile[2]]) for tile in planned]
    assert lens == sorted(lens, reverse=True)


def test_locs_past_two_to_the_31_elements_are_reached(cuda: torch.device) -> None:
    num_locs = 2**31 // (8 * 128) + 4096
    caches = [torch.zeros(num_locs, 8, 128, dtype=torch.bfloat16, device=cuda) for _ in range(2)]
    for cache in caches:
        cache[-96:] = torch.randn(96, 8, 128, device=cuda)
    q = torch.randn(40, 16, 128, device=cuda).bfloat16()
    near = 95 - torch.arange(96, dtype=torch.int32, device=cuda)[None]
    row, cached_len, extend_len = (
        torch.full((1,), x, dtype=torch.int32, device=cuda) for x in (0, 56, 40)
    )

    far = near + (num_locs - 96)
    out = prefill_attention(q, *caches, far, row, cached_len, extend_len, 0.1)

    kept = [cache[-96:].double() for cache in caches]
    expected = reference.prefill_attention(
        q.double(), *kept, near, row, cached_len, extend_len, 0.1
    )
    assert_near(out, expected)
