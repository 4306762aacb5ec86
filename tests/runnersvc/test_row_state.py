from __future__ import annotations

import pytest
import torch

from runnersvc.row_state import RowState, SamplingRows, opened_rows
from servicekit.plan import RowOpen

pytestmark = pytest.mark.torch


def open_row(table_idx: int, seed: int) -> RowOpen:
    return RowOpen(
        table_idx, prompt_len=9, temperature=0.5, top_k=4, top_p=0.25, seed=seed, choice=2
    )


def open_rows(state: RowState, *rows: RowOpen) -> None:
    state.open(*(torch.from_numpy(words) for words in opened_rows(rows)))


@pytest.fixture
def state() -> RowState:
    return RowState(3, torch.device("cpu"))


def test_opened_rows_hold_what_they_were_opened_with(state: RowState) -> None:
    seeds = [-(2**63), 2**63 - 1]
    open_rows(state, open_row(2, seeds[0]), open_row(0, seeds[1]))

    chosen = SamplingRows(*(field[[0, 2]] for field in state.sampling))

    assert chosen.temperature.tolist() == [0.5, 0.5]
    assert chosen.top_k.tolist() == [4, 4]
    assert chosen.top_p.tolist() == [0.25, 0.25]
    assert chosen.seed.tolist() == [seeds[1], seeds[0]]
    assert chosen.choice.tolist() == [2, 2]


def test_rows_never_opened_and_the_dummy_row_are_greedy(state: RowState) -> None:
    open_rows(state, open_row(1, 5))

    assert state.sampling.temperature[[0, 3]].tolist() == [0, 0]


def test_the_last_token_stays_until_the_row_is_opened_again(state: RowState) -> None:
    state.last_token[:] = torch.tensor([8, 0, 7, 0])

    open_rows(state, open_row(2, 1))

    assert state.last_token.tolist() == [8, 0, 0, 0]
