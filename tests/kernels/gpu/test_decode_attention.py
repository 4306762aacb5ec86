from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from kernels.gpu.attention_tuning import DecodeConfig
from kernels.gpu.decode_attention import decode_attention
from kernels.gpu.decode_workspace import decode_workspace
from kernels.reference import attention as reference
from tests.kernels.gpu.closeness import BOUNDS, assert_near
from tests.kernels.paged_world import paged_world

CONFIG = DecodeConfig(16, num_warps=4, num_stages=3, workers_per_sm=1, page_tiles=True)
NUM_KV_HEADS = 2
LENS = [1, 15, 16, 17, 64, 65]  # around the borders of tiles, and of pages of 16 and 64
DTYPES = list(BOUNDS)


class Decode:
    """Rows of known lengths in a NaN-poisoned cache, and decode attention over them."""

    def __init__(
        self,
        lens: list[int],
        device: torch.device,
        *,
        page_size: int = 16,
        group: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        world = paged_world(lens, page_size=page_size, num_kv_heads=NUM_KV_HEADS, head_dim=head_dim)
        self.page_size = page_size
        self.scale = head_dim**-0.5
        self.caches = [cache.to(device, dtype) for cache in (world.k_cache, world.v_cache)]
        self.page_table = world.page_table.to(device)
        self.table_idxs = torch.randperm(len(lens)).to(device, torch.int32)
        self.seq_lens = torch.tensor(lens, dtype=torch.int32, device=device)[self.table_idxs]
        self.q = torch.randn(len(lens), NUM_KV_HEADS * group, head_dim).to(device, dtype)

    def expected(self) -> Tensor:
        q, *caches = (x.double() for x in (self.q, *self.caches))
        rows = self.page_table, self.table_idxs, self.seq_lens
        return reference.decode_attention(q, *caches, *rows, self.scale)

    def attend(
        self, config: DecodeConfig = CONFIG, num_workers: int = 5, q: Tensor | None = None
    ) -> Tensor:
        """The kernel's result; its output and partial results were NaN before."""
        num_reqs, num_heads, head_dim = self.q.shape
        workspace = decode_workspace(
            num_reqs,
            num_heads,
            NUM_KV_HEADS,
            head_dim,
            dtype=self.q.dtype,
            device=self.q.device,
            config=config,
            num_workers=num_workers,
        )
        workspace.partial.fill_(math.nan)
        workspace.partial_lse.fill_(math.nan)
        workspace.plan_step(self.table_idxs, self.seq_lens)
        out = decode_attention(
            self.q if q is None else q,
            *self.caches,
            self.page_table,
            self.table_idxs,
            self.seq_lens,
            self.scale,
            out=torch.full_like(self.q, math.nan),
            workspace=workspace,
            page_size=self.page_size,
            settled=True,  # torch has filled `out` since
        )
        assert not workspace.arrivals.any(), "the next layer counts from zero"
        return out


@pytest.mark.parametrize(
    ("page_size", "group"),
    [(1, 1), (16, 1), (1, 2), (16, 2), (64, 2), (16, 3), (64, 5), (1, 7), (64, 7), (16, 8)],
)
def test_each_row_reads_its_own_locs_at_any_page_size_and_group(
    device: torch.device, page_size: int, group: int
) -> None:
    decode = Decode(LENS, device, page_size=page_size, group=group)

    assert_near(decode.attend(), decode.expected())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_is_right_in_every_dtype(
    device: torch.device, head_dim: int, dtype: torch.dtype
) -> None:
    decode = Decode([40, 1, 17], device, group=3, head_dim=head_dim, dtype=dtype)

    assert_near(decode.attend(), decode.expected())


@pytest.mark.parametrize(
    ("group", "dtype"),
    [(1, torch.float32), (2, torch.bfloat16), (4, torch.float16), (5, torch.float32)],
)
def test_the_last_worker_of_a_row_can_combine_for_all(
    device: torch.device, group: int, dtype: torch.dtype
) -> None:
    decode = Decode([33, 16, 64, 1, 65], device, group=group, dtype=dtype)
    fused = replace(CONFIG, fused_combine=True)

    assert_near(decode.attend(fused, num_workers=9), decode.expected())


@pytest.mark.parametrize(
    ("tile_len", "num_workers"), [(16, 1), (16, 40), (32, 2), (32, 7), (64, 1), (64, 40)]
)
def test_the_partition_changes_no_result(
    device: torch.device, tile_len: int, num_workers: int
) -> None:
    decode = Decode([96, 31, 32, 33], device)

    out = decode.attend(replace(CONFIG, tile_len=tile_len), num_workers)

    assert_near(out, decode.expected())


@pytest.mark.parametrize("fused_combine", [False, True])
@pytest.mark.parametrize(
    ("lens", "tile_len", "num_workers"),
    [
        ([96, 31, 32, 33], 16, 12),
        ([96, 31, 32, 33], 16, 2),
        ([1, 2, 16, 17], 16, 40),
        ([80], 32, 1),
    ],
)
def test_a_first_tile_read_early_changes_no_result(
    device: torch.device, lens: list[int], tile_len: int, num_workers: int, *, fused_combine: bool
) -> None:
    decode = Decode(lens, device)
    plain = replace(CONFIG, tile_len=tile_len, fused_combine=fused_combine, page_tiles=False)

    out = decode.attend(replace(plain, early_tile=True), num_workers)

    assert_near(out, decode.expected())
    assert_near(out, decode.attend(plain, num_workers).double())


@pytest.mark.parametrize("fused_combine", [False, True])
def test_one_row_may_be_shared_by_more_workers_than_are_merged_at_once(
    device: torch.device, fused_combine: bool
) -> None:
    decode = Decode([96], device, group=8, head_dim=256)  # 8 * 256 numbers each: two at once

    out = decode.attend(replace(CONFIG, fused_combine=fused_combine), num_workers=6)

    assert_near(out, decode.expected())


@pytest.mark.parametrize("page_size", [16, 64])
def test_reading_one_loc_a_page_gives_the_very_result_of_reading_each_token_s(
    device: torch.device, page_size: int
) -> None:
    decode = Decode([1, 17, 64, 65], device, page_size=page_size)
    by_token = replace(CONFIG, page_tiles=False)

    assert torch.equal(decode.attend(), decode.attend(by_token))


def test_a_query_may_be_a_part_of_wider_rows(device: torch.device) -> None:
    decode = Decode([5, 90, 17], device)
    wider = torch.full((3, 9, 64), math.nan, device=device)
    wider[:, :4] = decode.q

    assert torch.equal(decode.attend(q=wider[:, :4]), decode.attend())


def test_padded_rows_of_one_token_leave_the_others_as_they_were(device: torch.device) -> None:
    decode = Decode([80, 33, 1], device)
    dummy = decode.table_idxs[decode.seq_lens == 1]
    order = torch.cat((decode.table_idxs, dummy.repeat(5)))
    decode.seq_lens = torch.cat((decode.seq_lens, decode.seq_lens.new_ones(5)))
    decode.table_idxs = order
    decode.q = torch.cat((decode.q, torch.randn(5, 4, 64).to(decode.q)))

    assert_near(decode.attend(), decode.expected())


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_workspace_one_is_made_from_the_table(
    device: torch.device, dtype: torch.dtype
) -> None:
    decode = Decode([3, 70], device, dtype=dtype)
    rows = decode.page_table, decode.table_idxs, decode.seq_lens

    out = decode_attention(decode.q, *decode.caches, *rows, decode.scale)

    assert_near(out, decode.expected())


@pytest.mark.parametrize("fused_combine", [False, True])
def test_a_captured_graph_follows_new_lengths_rows_and_locs(
    cuda: torch.device, fused_combine: bool
) -> None:
    first = Decode([96, 1, 40, 17], cuda, dtype=torch.bfloat16, page_size=1)
    rows = first.page_table, first.table_idxs, first.seq_lens
    config = replace(CONFIG, fused_combine=fused_combine)
    workspace = decode_workspace(
        4, 4, NUM_KV_HEADS, 64, dtype=torch.bfloat16, device=cuda, config=config, num_workers=9
    )
    out = torch.empty_like(first.q)

    def step() -> None:
        workspace.plan_step(first.table_idxs, first.seq_lens)
        decode_attention(first.q, *first.caches, *rows, first.scale, out=out, workspace=workspace)

    step()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    assert_near(out, first.expected())

    second = Decode([1, 96, 41, 3], cuda, dtype=torch.bfloat16, page_size=1)
    for name in ("page_table", "table_idxs", "seq_lens", "q"):
        getattr(first, name).copy_(getattr(second, name))
    for cache, other in zip(first.caches, second.caches, strict=True):
        cache[: len(other)] = other
    out.fill_(math.nan)
    graph.replay()
    assert_near(out, second.expected())


def test_locs_past_two_to_the_31_elements_are_reached(cuda: torch.device) -> None:
    num_locs = 2**31 // (8 * 128) + 4096
    caches = [torch.zeros(num_locs, 8, 128, dtype=torch.bfloat16, device=cuda) for _ in range(2)]
    page_table = (num_locs - 1 - torch.arange(96, device=cuda, dtype=torch.int32))[None]
    for cache in caches:
        cache[-96:] = torch.randn(96, 8, 128, device=cuda)
    q = torch.randn(1, 16, 128, device=cuda).bfloat16()
    row = torch.zeros(1, dtype=torch.int32, device=cuda)
    lens = torch.full((1,), 96, dtype=torch.int32, device=cuda)

    out = decode_attention(q, *caches, page_table, row, lens, 0.1)

    near = [cache[-96:].double() for cache in caches]
    few = 95 - torch.arange(96, device=cuda, dtype=torch.int32)[None]
    assert_near(out, reference.decode_attention(q.double(), *near, few, row, lens, 0.1))
