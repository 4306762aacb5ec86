"""What a recording says was executed, over lost streams, restarts and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servicekit.errors import SetupError
from servicekit.plan_history import PlanHistory, mismatch, read_history
from tests.cachesvc.builders import describe
from tests.runnersvc.plans import decode, prefill
from tests.servicekit.recorded import ATTACHED, attached, failed, refusal, result, write

OURS, THEIRS = "manager-1", "manager-2"


def history(directory: Path, *records: Any) -> PlanHistory:
    return read_history(write(directory / "stream", *records), allow_cut=False)


def executed(found: PlanHistory) -> list[tuple[int, list[int]]]:
    """Plan ids with what they sampled; each plan that is read is the one that is listed."""
    read = list(found.read_plans())
    assert [one.plan_id for one, _ in read] == [one.plan_id for one in found.plans]
    return [(one.plan_id, one.sampled_ids.tolist()) for one in found.plans]


def test_plans_come_with_what_they_sampled_and_their_digest(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(), decode(2, 3), result(1, 7, table_digest=9), result(2, 8)),
    )
    assert executed(found) == [(1, [7]), (2, [8])]
    assert [one.table_digest for one in found.plans] == [9, None]
    assert found.description == describe()
    assert (found.num_recorded, found.num_left_out, found.num_attaches, found.cut) == (2, 0, 1, "")


def test_a_plan_without_a_result_is_left_out(tmp_path: Path) -> None:
    found = history(tmp_path, ATTACHED, prefill(), decode(2, 3), result(1, 7), decode(3, 4))
    assert executed(found) == [(1, [7])]
    assert (found.num_recorded, found.num_left_out) == (3, 2)


def test_a_refused_plan_and_those_sent_behind_it_are_left_out(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), decode(2, 9), result(1, 7), decode(3, 4), refusal(2)),
        *(prefill(2), result(2, 5)),
    )
    assert executed(found) == [(1, [7]), (2, [5])]
    assert (found.num_recorded, found.num_refused, found.num_left_out) == (4, 1, 2)
    last, _ = list(found.read_plans())[-1]
    assert last.reset_rows, "the plan after the refusal, not the refused one of the same number"


def test_plans_that_the_runner_failed_at_are_left_out(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), result(1, 7), decode(2, 3), decode(3, 4), failed(2)),
        *(attached("boot-2"), prefill(1), result(1, 7)),
    )
    assert executed(found) == [(1, [7]), (1, [7])]
    assert (found.num_recorded, found.num_refused, found.num_left_out) == (4, 0, 2)


def test_a_lost_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), decode(2, 3), result(1, 7)),
        *(attached(last_executed=2, last_manager_id=OURS), result(2, 8), decode(3, 4)),
        result(3, 9),
    )
    assert executed(found) == [(1, [7]), (2, [8]), (3, [9])]
    assert found.num_attaches == 2


def test_a_result_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), result(1, 7)),
        *(
            attached(last_executed=1, last_manager_id=OURS),
            result(1, 7),
            decode(2, 3),
            result(2, 8),
        ),
    )
    assert executed(found) == [(1, [7]), (2, [8])]


def test_a_new_runner_starts_over_and_what_the_old_one_never_answered_is_gone(
    tmp_path: Path,
) -> None:
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), decode(2, 3), result(1, 7)),
        *(attached("boot-2"), prefill(1), result(1, 4), decode(2, 3), result(2, 5)),
    )
    assert executed(found) == [(1, [7]), (1, [4]), (2, [5])]


def test_results_of_another_manager_answer_no_plan_of_ours(tmp_path: Path) -> None:
    """It drove the runner since: its plans 2 and 3 have the numbers of one that we lost."""
    found = history(
        tmp_path,
        *(ATTACHED, prefill(1), decode(2, 3), result(1, 7)),
        *(attached(last_executed=3, last_manager_id=THEIRS), result(2, 1), result(3, 1)),
        *(prefill(4), result(4, 6)),
    )
    assert executed(found) == [(1, [7]), (4, [6])]


def test_results_that_a_runner_kept_for_another_manager_come_first(tmp_path: Path) -> None:
    first = attached(last_executed=5, last_manager_id=THEIRS)
    found = history(tmp_path, first, result(4, 1), result(5, 1), prefill(6), result(6, 6))
    assert executed(found) == [(6, [6])]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ((), "no plan with a result"),
        ((ATTACHED,), "no plan with a result"),
        ((ATTACHED, prefill(1)), "no plan with a result"),
        ((prefill(1),), "at byte 5 comes before a runner attached"),
        ((ATTACHED, prefill(1), decode(2, 3), result(2, 8)), "answers plan 2 before plan 1"),
    ],
)
def test_what_cannot_be_replayed_says_why(
    tmp_path: Path, records: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(SetupError, match=words):
        history(tmp_path, *records)


def test_plans_for_two_kinds_of_runner_are_named_with_both_values(tmp_path: Path) -> None:
    other = attached("boot-2", page_size=8, num_pages=9)
    with pytest.raises(SetupError, match="page_size 4 and 8, num_pages 8 and 9: it cannot"):
        history(tmp_path, ATTACHED, prefill(1), result(1, 7), other, prefill(1), result(1, 7))


def test_a_runner_of_another_kind_without_a_plan_does_not_matter(tmp_path: Path) -> None:
    found = history(tmp_path, attached(page_size=8), attached("b"), prefill(1), result(1, 7))
    assert found.description == describe()


def test_a_mismatch_names_what_a_plan_relies_on() -> None:
    assert mismatch(describe(), describe()) == ""
    assert mismatch(describe(), describe(num_rows=4)) == "num_rows 3 and 4"
    assert mismatch(describe(), describe(rank=1)) == ""


def test_a_recording_cut_anywhere_is_read_up_to_there_or_refused_by_name(tmp_path: Path) -> None:
    records = [ATTACHED, prefill(1), result(1, 7)]
    records += [one for at in range(2, 6) for one in (decode(at, at + 1), result(at, 7))]
    whole = write(tmp_path / "stream", *records).read_bytes()
    cut, num_read, refused = tmp_path / "cut", set(), set()
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        try:
            found = read_history(cut, allow_cut=True)
        except SetupError as error:
            refused.add(str(error).removeprefix(str(cut)))
            continue
        num_read.add(len(found.plans))
        assert executed(found) == [(at, [7]) for at in range(1, len(found.plans) + 1)]
        if found.cut:
            assert f"; {found.num_recorded} plans before it are whole" in found.cut
            with pytest.raises(SetupError, match=r"cut: the record at byte \d+ .*--allow-cut"):
                read_history(cut, allow_cut=False)
    assert num_read == {1, 2, 3, 4, 5}
    assert refused == {
        " is empty: it is no recording",
        " is no recording of a plan stream, or is cut in its header",
        " holds no plan with a result: there is nothing to replay",
    }
