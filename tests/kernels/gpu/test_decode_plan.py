from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from kernels.gpu.decode_plan import empty_plan, plan_decode

TILE_LEN = 16


def segments(
    lens: list[int], num_workers: int, device: torch.device, min_tiles: int = 1
) -> tuple[list[tuple[int, int, int, int]], torch.Tensor, int]:
    """What the kernel planned: (worker, row, first tile, end tile) each, row records, longest run.

    Asserts on the way that a record holds the length and table_idx of the row where it begins.
    """
    plan = empty_plan(len(lens), num_workers, device)
    plan.workers.fill_(-(2**31))
    plan.rows.fill_(-(2**31))
    table_idxs = torch.arange(len(lens), dtype=torch.int32, device=device).flip(0) + 7
    seq_lens = torch.tensor(lens, dtype=torch.int32, device=device)
    plan_decode(plan, table_idxs, seq_lens, tile_len=TILE_LEN, min_tiles=min_tiles)
    found = []
    runs = []
    for worker, record in enumerate(plan.workers.tolist()):
        row, tile, left, seq_len, table_idx = record[:5]
        runs.append(left)
        assert left >= 0
        assert seq_len == lens[row]
        assert table_idx == table_idxs[row].item()
        while left > 0:
            end = min(tile + left, -(-lens[row] // TILE_LEN))
            assert end > tile, "a worker makes progress in every row"
            found.append((worker, row, tile, end))
            left -= end - tile
            row, tile = row + 1, 0
    return found, plan.rows.cpu(), max(runs)


@settings(max_examples=40, deadline=None)
@given(
    lens=st.lists(st.integers(1, 400), min_size=1, max_size=9),
    num_workers=st.integers(1, 70),
    min_tiles=st.integers(1, 4),
)
def test_any_plan_covers_each_tile_once_with_partial_results_that_the_rows_can_find(
    device: torch.device, lens: list[int], num_workers: int, min_tiles: int
) -> None:
    found, rows, longest = segments(lens, num_workers, device, min_tiles)

    tiles_of = [-(-length // TILE_LEN) for length in lens]
    for row, num_tiles in enumerate(tiles_of):
        of_row = sorted((first, end, worker) for worker, r, first, end in found if r == row)
        assert of_row[0][0] == 0
        assert of_row[-1][1] == num_tiles
        assert all(a[1] == b[0] for a, b in pairwise(of_row))
        first_worker, num_sharing = rows[row].tolist()
        assert [worker for *_, worker in of_row] == list(
            range(first_worker, first_worker + num_sharing)
        )
    assert longest <= max(-(-sum(tiles_of) // num_workers), min_tiles)

    partial_ids = [
        2 * worker + (first == 0)
        for worker, row, first, end in found
        if end - first < tiles_of[row]
    ]
    assert len(set(partial_ids)) == len(partial_ids)
    assert all(partial_id < 2 * num_workers for partial_id in partial_ids)


def test_equal_runs_are_cut_across_the_borders_of_rows(device: torch.device) -> None:
    found, rows, _ = segments([5, 100, 33, 1, 64], 7, device)  # 1, 7, 3, 1, 4 tiles: runs of 3

    assert found == [
        (0, 0, 0, 1),
        (0, 1, 0, 2),
        (1, 1, 2, 5),
        (2, 1, 5, 7),
        (2, 2, 0, 1),
        (3, 2, 1, 3),
        (3, 3, 0, 1),
        (4, 4, 0, 3),
        (5, 4, 3, 4),
    ]
    assert rows.tolist() == [[0, 1], [0, 3], [2, 2], [3, 1], [4, 2]]


def test_a_batch_of_hundreds_is_planned_by_several_programs(device: torch.device) -> None:
    lens = [1 + 37 * i % 500 for i in range(300)]

    found, _, longest = segments(lens, 30, device)

    assert {worker for worker, *_ in found} == set(range(30))
    assert longest == -(-sum(-(-length // TILE_LEN) for length in lens) // 30)


def test_a_dummy_row_of_one_token_is_one_tile(device: torch.device) -> None:
    found, rows, _ = segments([1, 1, 1, 1], 2, device)

    assert found == [(0, 0, 0, 1), (0, 1, 0, 1), (1, 2, 0, 1), (1, 3, 0, 1)]
    assert rows[:, 1].tolist() == [1, 1, 1, 1]
