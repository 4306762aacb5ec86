"""Rows: a request's columns, and which rows are unused."""

from __future__ import annotations

from cachesvc.prefix_node import SaltedRoot
from cachesvc.request import Req
from cachesvc.rows import RowTable
from tests.cachesvc.builders import describe, ints, request


def open_row(rows: RowTable, req: Req, generation: int, num_pages: int = 0) -> int:
    return rows.open(req, generation, SaltedRoot(""), num_pages)


def test_the_lowest_rows_are_opened_first() -> None:
    rows = RowTable(describe(num_rows=3))
    assert [open_row(rows, request(key), key) for key in (1, 2)] == [0, 1]
    assert rows.unused_count == 1


def test_the_row_closed_last_is_opened_next() -> None:
    rows = RowTable(describe(num_rows=3))
    for key in (1, 2, 3):
        open_row(rows, request(key), key)
    rows.close(2)
    rows.close(0)
    assert open_row(rows, request(4), 4) == 0
    assert open_row(rows, request(5), 5) == 2


def test_a_row_starts_with_its_ids_known_and_nothing_cached() -> None:
    rows = RowTable(describe())
    req = request(prompt=(7, 8, 9), limit_len=12)
    req.output_ids = ints(4, 5)
    idx = open_row(rows, req, generation=6)
    assert (rows.prompt_len[idx], rows.known_len[idx], rows.limit_len[idx]) == (3, 5, 12)
    assert (rows.cached_len[idx], rows.pending_len[idx], rows.num_pages[idx]) == (0, 0, 0)
    assert rows.ids[idx, :5].tolist() == [7, 8, 9, 4, 5]
    assert rows.output_ids(idx).tolist() == [4, 5]
    assert rows.generation[idx] == 6
    assert rows.req[idx] is req


def test_a_row_that_opens_on_cached_pages_has_their_tokens_and_shares_them() -> None:
    rows = RowTable(describe(page_size=4))
    idx = open_row(rows, request(prompt=range(9)), 1, num_pages=2)
    assert (rows.cached_len[idx], rows.num_pages[idx], rows.num_tree_pages[idx]) == (8, 2, 2)


def test_nothing_of_the_former_request_is_left_in_a_row() -> None:
    rows = RowTable(describe(num_rows=1))
    former = request(1, stop=[3, 4, 5])
    idx = open_row(rows, former, 1)
    rows.cached_len[idx] = rows.pending_len[idx] = 2
    rows.has_sampled[idx] = rows.pool_is_full[idx] = True
    rows.close(idx)
    assert not rows.live[idx]
    later = request(2, stop=[9])
    assert open_row(rows, later, 2) == idx
    assert (rows.cached_len[idx], rows.pending_len[idx]) == (0, 0)
    assert not rows.has_sampled[idx]
    assert not rows.pool_is_full[idx]
    assert rows.live[idx]
    assert rows.stop_ids[idx, :2].tolist() == [9, 16]  # 16 is outside the vocabulary


def test_output_ids_are_a_copy() -> None:
    rows = RowTable(describe())
    req = request(prompt=(1,))
    req.output_ids = ints(2)
    idx = open_row(rows, req, 1)
    kept = rows.output_ids(idx)
    rows.ids[idx, 1] = 5
    assert kept.tolist() == [2]
