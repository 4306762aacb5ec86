"""The scattered writes: page table and KV store."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.kv_store import store_kv
from kernels.reference.page_table import read_page_table, scatter_page_table

pytestmark = pytest.mark.torch


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_scatter_writes_the_named_entries_and_leaves_the_others() -> None:
    page_table = torch.zeros(3, 8, dtype=torch.int32)

    scatter_page_table(page_table, ints(2, 0, 2), ints(7, 1, 0), ints(11, 12, 13))

    assert page_table.tolist() == [[0, 12] + [0] * 6, [0] * 8, [13] + [0] * 6 + [11]]
    assert read_page_table(page_table, ints(2, 0), ints(0, 1)).tolist() == [13, 12]


def test_an_empty_scatter_writes_nothing() -> None:
    page_table = torch.full((2, 4), 5, dtype=torch.int32)

    scatter_page_table(page_table, ints(), ints(), ints())

    assert page_table.tolist() == [[5] * 4] * 2


def test_tokens_are_stored_at_their_out_locs_only() -> None:
    k_cache, v_cache = torch.full((2, 6, 2, 4), torch.nan)
    qkv = torch.randn(3, 7, 4)  # K and V come as strided parts of one matrix
    k, v = qkv[:, 2:4], qkv[:, 4:6]

    store_kv(k_cache, v_cache, k, v, torch.tensor([5, 0, 3]))

    for i, loc in enumerate([5, 0, 3]):
        assert torch.equal(k_cache[loc], k[i])
        assert torch.equal(v_cache[loc], v[i])
    assert k_cache[[1, 2, 4]].isnan().all()
    assert v_cache[[1, 2, 4]].isnan().all()
