"""Which plans are refused, for what, who is named, and that a refusal changes nothing.

The world: pages of 4 tokens, 8 pages (the dummy page is 8), rows 0 to 2, 24 positions, ids 0 to 15.
After plan 1, row 0 holds page 0, is 3 tokens long and has sampled; row 1 holds pages 1 and 2, is 5
tokens long and has not. Plan 2 opens row 2 on page 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runnersvc.bookkeeping import Books
from servicekit.plan import Plan, Refusal, RowRules
from tests.cachesvc.builders import describe, plan, row_open

OLD_PAGES = {
    "write_rows": [0] * 4 + [1] * 8,
    "write_positions": [*range(4), *range(8)],
    "write_locs": list(range(12)),
}
GOOD: dict[str, Any] = {
    "open_rows": (row_open(2),),
    "write_rows": [2, 2, 2, 2],
    "write_positions": [0, 1, 2, 3],
    "write_locs": [12, 13, 14, 15],
    "step_rows": [0, 1, 2],
    "step_cached_lens": [3, 5, 0],
    "step_extend_lens": [1, 2, 2],
    "step_num_literals": [0, 2, 2],
    "step_samples": [True, True, False],
    "literal_ids": [1, 2, 3, 4],
}
NO_WRITE: dict[str, Any] = {"write_rows": [], "write_positions": [], "write_locs": []}


def books_after_plan_1() -> Books:
    books = Books(describe())
    assert books.accept(plan_1()) is None
    return books


def plan_1() -> Plan:
    return plan(
        1,
        reset_rows=True,
        open_rows=(row_open(0), row_open(1)),
        **OLD_PAGES,
        step_rows=[0, 1],
        step_cached_lens=[0, 0],
        step_extend_lens=[3, 5],
        step_num_literals=[3, 5],
        step_samples=[True, False],
        literal_ids=[1, 2, 3, 4, 5, 6, 7, 8],
    )


def good(plan_id: int = 2, **changes: Any) -> Plan:
    return plan(plan_id, **{**GOOD, **changes})


def columns(books: Books) -> list[bytes]:
    return [column.tobytes() for column in vars(books).values() if isinstance(column, np.ndarray)]


def write_of(*pages: tuple[int, int, int]) -> dict[str, Any]:
    """A table write of whole pages: (row, first position, first loc) each."""
    inside = range(4)
    return {
        "write_rows": [row for row, _, _ in pages for _ in inside],
        "write_positions": [position + nth for _, position, _ in pages for nth in inside],
        "write_locs": [loc + nth for _, _, loc in pages for nth in inside],
    }


def stepping(row: int, cached_len: int, extend_len: int, num_literals: int) -> dict[str, Any]:
    """Only this row computes."""
    return {
        "step_rows": [row],
        "step_cached_lens": [cached_len],
        "step_extend_lens": [extend_len],
        "step_num_literals": [num_literals],
        "step_samples": [True],
        "literal_ids": [1] * num_literals,
    }


def refusal_of(**changes: Any) -> Refusal:
    """How plan 2, changed, is refused; nothing of it may stay in the books."""
    books = books_after_plan_1()
    before = columns(books)
    refusal = books.accept(good(**changes))
    assert refusal is not None, "accepted"
    assert columns(books) == before
    assert refusal.plan_id == changes.get("plan_id", 2)
    assert refusal.last_accepted_plan_id == books.last_plan_id == 1
    assert refusal.message
    assert books.accept(good()) is None, "the correct plan is accepted afterwards"
    return refusal


def ruled(**rules: Any) -> dict[str, Any]:
    """Row 2 opens with these rules."""
    return {"open_rows": (replace(row_open(2), rules=RowRules(**rules)),)}


CASES: dict[str, tuple[dict[str, Any], str, tuple[int, ...]]] = {
    "a gap in plan_id": ({"plan_id": 3}, "PLAN_GAP", ()),
    "a plan_id again": ({"plan_id": 1}, "PLAN_GAP", ()),
    "write arrays of different lengths": ({"write_locs": [12, 13, 14]}, "MALFORMED", ()),
    "step arrays of different lengths": ({"step_samples": [True]}, "MALFORMED", ()),
    "too few literal ids": ({"literal_ids": [1, 2, 3]}, "MALFORMED", ()),
    "literal ids that nobody takes": ({"literal_ids": [1, 2, 3, 4, 5]}, "MALFORMED", ()),
    "negative num_literals": ({"step_num_literals": [-1, 3, 2]}, "MALFORMED", ()),
    "a close of a row that is not open": ({"close_rows": [2]}, "UNKNOWN_ROW", (2,)),
    "a close of a row that does not exist": ({"close_rows": [3]}, "UNKNOWN_ROW", ()),
    "a close of a negative row": ({"close_rows": [-1]}, "UNKNOWN_ROW", ()),
    "a row closed twice": ({"close_rows": [0, 0]}, "ROW_TWICE", (0,)),
    "an open row opened": ({"open_rows": (row_open(2), row_open(0))}, "ROW_TWICE", (0,)),
    "a row opened twice": ({"open_rows": (row_open(2), row_open(2))}, "ROW_TWICE", (2,)),
    "the dummy row opened": ({"open_rows": (row_open(2), row_open(3))}, "UNKNOWN_ROW", ()),
    "a write to a row that is not open": ({"open_rows": ()}, "UNKNOWN_ROW", (2,)),
    "a write to the dummy row": (write_of((3, 0, 12)), "UNKNOWN_ROW", ()),
    "the dummy page": (write_of((0, 4, 16), (2, 0, 32)), "TABLE_WRITE", (2,)),
    "a negative loc": (write_of((0, 4, 16), (2, 0, -4)), "TABLE_WRITE", (2,)),
    "a position past the row": (write_of((0, 4, 16), (2, 24, 12)), "POSITION", (2,)),
    "a negative position": (write_of((0, 4, 16), (2, -4, 12)), "POSITION", (2,)),
    "locs that do not run on": ({"write_locs": [12, 13, 15, 14]}, "TABLE_WRITE", (2,)),
    "a first loc inside a page": ({"write_locs": [13, 14, 15, 16]}, "TABLE_WRITE", (2,)),
    "a first position inside a page": ({"write_positions": [1, 2, 3, 4]}, "TABLE_WRITE", (2,)),
    "a position twice": ({"write_positions": [0, 1, 2, 2]}, "TABLE_WRITE", (2,)),
    "a page twice": (write_of((0, 4, 16), (2, 0, 12), (2, 0, 12)), "TABLE_WRITE", (2,)),
    "half a page": (
        {
            "write_rows": [0, 0, 0, 0, 2, 2],
            "write_positions": [4, 5, 6, 7, 0, 1],
            "write_locs": [16, 17, 18, 19, 12, 13],
        },
        "TABLE_WRITE",
        (2,),
    ),
    "two halves of pages": (
        {
            "write_rows": [0, 0, 0, 0, 1, 1, 2, 2],
            "write_positions": [4, 5, 6, 7, 8, 9, 0, 1],
            "write_locs": [16, 17, 18, 19, 20, 21, 12, 13],
        },
        "TABLE_WRITE",
        (1, 2),
    ),
    "a step of a row that is not open": (
        {"open_rows": (), **NO_WRITE, **stepping(2, 0, 1, 1)},
        "UNKNOWN_ROW",
        (2,),
    ),
    "a step of a row that this plan closes": ({"close_rows": [0]}, "UNKNOWN_ROW", (0,)),
    "a step of the dummy row": (stepping(3, 0, 1, 1), "UNKNOWN_ROW", ()),
    "a row stepped twice": ({"step_rows": [0, 1, 1]}, "ROW_TWICE", (1,)),
    "extend_len 0": ({"step_extend_lens": [0, 2, 2]}, "EXTEND_LEN", (0,)),
    "fewer ids than extend_len": ({"step_extend_lens": [1, 3, 2]}, "EXTEND_LEN", (1,)),
    "two tokens sampled last": ({"step_extend_lens": [2, 2, 2]}, "EXTEND_LEN", (0,)),
    "a step past the context": (stepping(1, 5, 20, 20), "POSITION", (1,)),
    "a negative cached_len": (stepping(1, -1, 2, 2), "POSITION", (1,)),
    "cached_len above the row's length": (stepping(1, 6, 2, 2), "CACHED_LEN", (1,)),
    "cached_len below the row's length": (stepping(0, 2, 1, 0), "CACHED_LEN", (0,)),
    "the token sampled last of a row that has not": (stepping(1, 5, 1, 0), "NEVER_SAMPLED", (1,)),
    "an id past the vocabulary": ({"literal_ids": [1, 16, 3, 4]}, "VOCAB", (1,)),
    "a negative id": ({"literal_ids": [1, 2, -1, 4]}, "VOCAB", (2,)),
    "a bias of an id past the vocabulary": (ruled(bias_ids=(16,), biases=(1.0,)), "VOCAB", (2,)),
    "a history with a negative id": (ruled(history_ids=(3, -1)), "VOCAB", (2,)),
    "a stop id past the vocabulary": (ruled(stop_token_ids=(2, 99)), "VOCAB", (2,)),
    "more log probabilities than there are": (ruled(logprobs=21), "MALFORMED", (2,)),
    "more biases than ids": (ruled(bias_ids=(3,), biases=(1.0, 2.0)), "MALFORMED", (2,)),
    "a store where no page is mapped": (NO_WRITE, "STORE", (2,)),
    "a store past the pages of a row": (stepping(0, 3, 2, 2), "STORE", (0,)),
    "a store into another row's page": (write_of((2, 0, 0)), "STORE", (0, 2)),
    "a store into a page that is twice in a row": (
        write_of((2, 0, 12), (2, 4, 12)),
        "STORE",
        (2,),
    ),
    "a token before which nothing is mapped": (
        {**write_of((2, 4, 12)), **stepping(2, 4, 1, 1)},
        "POSITION",
        (2,),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_refused_by_the_rule_it_breaks_and_names_who_is_at_fault(case: str) -> None:
    changes, reason, named_rows = CASES[case]
    refusal = refusal_of(**changes)
    assert (refusal.reason, refusal.named_rows) == (reason, named_rows)


def test_a_step_of_more_tokens_than_memory_was_sized_for_is_refused() -> None:
    assert Books(describe(max_step_tokens=8)).accept(plan_1()) is None
    refusal = Books(describe(max_step_tokens=7)).accept(plan_1())
    assert refusal is not None
    assert (refusal.reason, refusal.message) == ("STEP_TOKENS", "a step of 8 tokens, at most 7")


def test_the_message_says_what_was_found() -> None:
    assert refusal_of(**stepping(1, 6, 2, 2)).message == "cached_len 6 of a row with length 5"
    assert refusal_of(plan_id=3).message == "plan 3 after plan 1"


class TestAccepted:
    def test_a_correct_plan(self) -> None:
        books = books_after_plan_1()
        assert books.accept(good()) is None
        assert books.last_plan_id == 2

    def test_the_entries_of_a_write_in_any_order(self) -> None:
        mixed = {
            "write_rows": [2, 0, 2, 0, 2, 0, 2, 0],
            "write_positions": [3, 4, 1, 5, 0, 6, 2, 7],
            "write_locs": [15, 16, 13, 17, 12, 18, 14, 19],
        }
        assert books_after_plan_1().accept(good(**mixed)) is None

    def test_a_row_closed_and_opened_in_one_plan_starts_anew(self) -> None:
        books = books_after_plan_1()
        again = good(
            close_rows=[0],
            open_rows=(row_open(0),),
            **{**write_of((0, 0, 0)), **stepping(0, 0, 2, 2)},
        )
        assert books.accept(again) is None
        refusal = books.accept(plan(3, **stepping(0, 3, 1, 1)))
        assert refusal is not None
        assert refusal.reason == "CACHED_LEN"

    def test_a_row_that_starts_anew_has_not_sampled(self) -> None:
        books = books_after_plan_1()
        again = plan(2, close_rows=[0], open_rows=(row_open(0),), **write_of((0, 0, 0)))
        assert books.accept(again) is None
        refusal = books.accept(plan(3, **stepping(0, 0, 1, 0)))
        assert refusal is not None
        assert refusal.reason == "NEVER_SAMPLED"

    def test_the_page_of_a_row_that_closes_is_given_to_another_in_the_same_plan(self) -> None:
        taking_over = good(close_rows=[0], **{**write_of((2, 0, 0)), **stepping(2, 0, 2, 2)})
        assert books_after_plan_1().accept(taking_over) is None

    def test_reset_closes_every_row_and_lets_go_of_every_page(self) -> None:
        starting_over = good(
            reset_rows=True,
            open_rows=(row_open(0), row_open(1)),
            **{**write_of((0, 0, 4), (1, 0, 0)), **stepping(1, 0, 2, 2)},
        )
        assert books_after_plan_1().accept(starting_over) is None

    def test_after_a_reset_no_row_is_open(self) -> None:
        refusal = refusal_of(reset_rows=True, close_rows=[0])
        assert (refusal.reason, refusal.named_rows) == ("UNKNOWN_ROW", (0,))

    def test_rows_that_read_one_page_and_store_into_their_own(self) -> None:
        sharing = good(**{**write_of((2, 0, 4), (2, 4, 12)), **stepping(2, 4, 2, 2)})
        assert books_after_plan_1().accept(sharing) is None

    def test_a_remap_lets_go_of_the_page_that_was_there(self) -> None:
        books = books_after_plan_1()
        remap = plan(2, open_rows=(row_open(2),), **write_of((1, 0, 20), (2, 0, 4)))
        assert books.accept(remap) is None
        assert books.accept(plan(3, **stepping(2, 0, 1, 1))) is None

    def test_a_context_that_ends_inside_a_page_may_be_filled(self) -> None:
        books = Books(describe(max_seq_len=6))
        whole = plan(
            1,
            open_rows=(row_open(0),),
            **{**write_of((0, 0, 0), (0, 4, 4)), **stepping(0, 0, 6, 6)},
        )
        assert books.accept(whole) is None
        refusal = books.accept(plan(2, **stepping(0, 6, 1, 0)))
        assert refusal is not None
        assert refusal.reason == "POSITION"

    def test_a_plan_that_does_nothing(self) -> None:
        assert books_after_plan_1().accept(plan(2)) is None

    def test_a_row_that_samples_later_may_use_the_token_it_sampled_before(self) -> None:
        books = books_after_plan_1()
        for plan_id, cached_len in ((2, 3), (3, 4)):
            more = write_of((0, 4, 16)) if plan_id == 2 else {}
            assert books.accept(plan(plan_id, **more, **stepping(0, cached_len, 1, 0))) is None


def test_page_size_one_has_no_inside() -> None:
    books = Books(describe(page_size=1))
    first = plan(
        1,
        open_rows=(row_open(0),),
        write_rows=[0, 0],
        write_positions=[0, 1],
        write_locs=[5, 2],
        **stepping(0, 0, 2, 2),
    )
    assert books.accept(first) is None
    twice = plan(2, write_rows=[0, 0], write_positions=[2, 2], write_locs=[3, 4])
    refusal = books.accept(twice)
    assert refusal is not None
    assert (refusal.reason, refusal.named_rows) == ("TABLE_WRITE", (0,))


def test_a_refusal_of_a_reset_brings_every_row_back() -> None:
    books = books_after_plan_1()
    before = columns(books)
    refusal = books.accept(good(reset_rows=True, literal_ids=[1, 2, 3, 99]))
    assert refusal is not None
    assert columns(books) == before
    assert books.accept(plan(2, **stepping(0, 3, 1, 0))) is None
    assert books.last_plan_id == 2
