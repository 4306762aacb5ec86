from __future__ import annotations

import pytest
import torch

from runnersvc.kv_cache import KVCache
from runnersvc.ops import ops_of

pytestmark = pytest.mark.torch


def make_cache(page_size: int = 4, max_seq_len: int = 33) -> KVCache:
    return KVCache(
        num_layers=2,
        num_kv_heads=3,
        head_dim=8,
        num_pages=5,
        page_size=page_size,
        max_running_reqs=2,
        max_seq_len=max_seq_len,
        dtype=torch.float32,
        device=torch.device("cpu"),
        ops=ops_of(torch.device("cpu"), page_size),
    )


def test_the_buffer_has_a_dummy_page_and_starts_as_zeros() -> None:
    cache = make_cache()

    assert cache.buffer.shape == (2, 2, 6, 4, 3, 8)
    assert not cache.buffer.any()
    assert cache.dummy_page_id == 5


@pytest.mark.parametrize(
    ("page_size", "max_seq_len", "width"), [(1, 33, 64), (4, 32, 32), (16, 33, 64), (64, 65, 128)]
)
def test_the_table_is_as_wide_as_a_whole_number_of_pages(
    page_size: int, max_seq_len: int, width: int
) -> None:
    assert make_cache(page_size, max_seq_len).page_table.shape == (3, width)


def test_every_table_entry_starts_as_a_loc_of_the_dummy_page() -> None:
    cache = make_cache()

    assert cache.dummy_table_idx == 2
    assert cache.page_table.dtype == torch.int32
    assert cache.page_table[:, :6].tolist() == [[20, 21, 22, 23, 20, 21]] * 3
    cache.check_integrity()


def test_a_layers_caches_are_views_of_the_buffer_by_loc() -> None:
    cache = make_cache()
    k_cache, v_cache = cache.layer(1)

    k_cache[4 * 3 + 2] = 1.0  # page 3, offset 2
    v_cache[0] = 2.0

    assert (cache.buffer[0, 1, 3, 2] == 1).all()
    assert (cache.buffer[1, 1, 0, 0] == 2).all()
    assert cache.buffer.count_nonzero() == 2 * 3 * 8


def test_a_table_write_sets_the_named_entries() -> None:
    cache = make_cache()
    before = cache.page_table.clone()

    rows, positions, locs = torch.tensor([[0, 1, 0], [0, 5, 1], [8, 17, 9]], dtype=torch.int32)
    cache.write_table(rows, positions, locs)

    before[0, :2] = torch.tensor([8, 9])
    before[1, 5] = 17
    assert torch.equal(cache.page_table, before)
    cache.check_integrity()


def test_integrity_fails_for_a_loc_outside_the_buffer_and_for_a_written_dummy_row() -> None:
    for row, loc in ((0, -1), (0, 24), (2, 3)):
        cache = make_cache()
        cache.page_table[row, 7] = loc
        with pytest.raises(AssertionError, match=str(loc)):
            cache.check_integrity()
