"""The scattered writes: page table and KV store."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.gpu.kv_store import FEW_TOKENS, store_kv
from kernels.gpu.page_table import BLOCK_N, read_page_table, scatter_page_table
from tests.kernels.gpu.closeness import BOUNDS

COUNTS = [1, BLOCK_N - 1, BLOCK_N, BLOCK_N + 1, 700]
HEADS = [(8, 64), (3, 80), (1, 96), (8, 128), (2, 256)]  # num_kv_heads, head_dim


def distinct_entries(n: int, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """`n` different (row, position) of a table, int32 each."""
    flat = torch.randperm(math.prod(shape))[:n]
    return (flat // shape[1]).int(), (flat % shape[1]).int()


@pytest.mark.parametrize("n", COUNTS)
def test_a_scatter_writes_the_named_entries_and_leaves_the_others(
    n: int, device: torch.device
) -> None:
    page_table = torch.full((9, 96), -7, dtype=torch.int32)
    rows, positions = distinct_entries(n, (9, 96))
    locs = torch.randint(0, 2**31 - 1, (n,), dtype=torch.int32)
    written = page_table.to(device)

    scatter_page_table(written, *(x.to(device) for x in (rows, positions, locs)))

    page_table[rows.long(), positions.long()] = locs
    assert torch.equal(written.cpu(), page_table)


@pytest.mark.parametrize("n", COUNTS)
def test_reading_the_table_gives_each_named_loc_as_int64(n: int, device: torch.device) -> None:
    page_table = torch.randint(0, 2**31 - 1, (9, 96), dtype=torch.int32)
    rows, positions = distinct_entries(n, (9, 96))

    locs = read_page_table(*(x.to(device) for x in (page_table, rows, positions)))

    assert torch.equal(locs.cpu(), page_table[rows.long(), positions.long()].long())


def test_nothing_to_write_or_read_launches_nothing(device: torch.device) -> None:
    page_table = torch.full((2, 32), 5, dtype=torch.int32, device=device)
    none = torch.empty(0, dtype=torch.int32, device=device)
    cache = torch.full((2, 4, 1, 64), math.nan, device=device)

    scatter_page_table(page_table, none, none, none)
    store_kv(
        *cache, torch.empty(0, 1, 64, device=device), torch.empty(0, 1, 64, device=device), none
    )

    assert read_page_table(page_table, none, none).shape == (0,)
    assert (page_table == 5).all()
    assert cache.isnan().all()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_tokens_are_stored_bit_for_bit_at_their_out_locs_only(
    num_tokens: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    qkv = torch.randn(num_tokens, 3 * num_kv_heads + 2, head_dim).to(dtype)
    check_store(qkv, num_kv_heads, torch.randperm(40)[:num_tokens], 40, device)


def test_many_tokens_are_stored_like_a_few(device: torch.device) -> None:
    """Past FEW_TOKENS a program stores several; an odd number leaves the last program short."""
    num_tokens = FEW_TOKENS + 3
    qkv = torch.randn(num_tokens, 3, 2)
    check_store(qkv, 1, torch.randperm(num_tokens + 9)[:num_tokens], num_tokens + 9, device)


def test_out_locs_may_be_int32_and_equal_on_the_dummy_page(device: torch.device) -> None:
    k_cache, v_cache = torch.full((2, 4, 1, 64), math.nan, device=device)
    k, v = torch.randn(2, 3, 1, 64, device=device)

    store_kv(k_cache, v_cache, k, v, torch.tensor([1, 3, 3], dtype=torch.int32, device=device))

    assert torch.equal(k_cache[1], k[0])
    assert torch.equal(v_cache[1], v[0])
    assert any(torch.equal(k_cache[3], k[i]) for i in (1, 2))
    assert k_cache[[0, 2]].isnan().all()


def test_case_5_1_offsets_pass_two_billion_elements(cuda: torch.device) -> None:
    """A loc times the width of a row, in 32 bits, once wrapped around into other rows."""
    num_locs, locs = 2_100_000, [0, 2**21 - 1, 2**21, 2_099_999]
    k_cache, v_cache = torch.zeros(2, num_locs, 8, 128, dtype=torch.bfloat16, device=cuda)
    k, v = torch.randn(2, 4, 8, 128, device=cuda).bfloat16()

    store_kv(k_cache, v_cache, k, v, torch.tensor(locs, device=cuda))

    assert torch.equal(k_cache[locs], k)
    assert torch.equal(v_cache[locs], v)
    assert k_cache.count_nonzero(dim=(1, 2)).count_nonzero() == 4
    assert v_cache.count_nonzero(dim=(1, 2)).count_nonzero() == 4


def check_store(
    qkv: torch.Tensor, num_kv_heads: int, locs: torch.Tensor, num_locs: int, device: torch.device
) -> None:
    """Stores the last heads of `qkv` [T, heads, head_dim], which are strided, into a NaN pool."""
    cache = torch.full((2, num_locs, num_kv_heads, qkv.shape[2]), math.nan, dtype=qkv.dtype)
    k, v = qkv[:, -2 * num_kv_heads : -num_kv_heads], qkv[:, -num_kv_heads:]
    stored = cache.to(device)
    on_device = qkv.to(device)

    store_kv(
        *stored,
        on_device[:, -2 * num_kv_heads : -num_kv_heads],
        on_device[:, -num_kv_heads:],
        locs.to(device),
    )

    cache[0, locs], cache[1, locs] = k, v
    assert torch.equal(stored.cpu().view(torch.uint8), cache.view(torch.uint8))
