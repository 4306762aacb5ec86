"""What a fresh manager takes over: from a journal cut or changed anywhere, of another memory, of
another manager.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cachesvc.adoption import UnusableJournalError, adopt
from cachesvc.integrity import check_integrity
from cachesvc.journal import Entry, Filled, Kept
from cachesvc.journal_format import decode
from cachesvc.ledger import Ledger
from cachesvc.limits import Limits
from cachesvc.manager import CacheManager
from cachesvc.plan_stream import DigestMismatchError
from servicekit.plan import Attached, Int32Array
from tests.cachesvc import invariants
from tests.cachesvc.broken_books import a_page_of_the_tree_is_free_too
from tests.cachesvc.builders import describe, ints, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.memory_journal import MemoryJournal
from tests.cachesvc.recorded_core import RecordedCore
from tests.cachesvc.test_journal_format import longs
from tests.cachesvc.troubled_world import TroubledWorld
from tests.cachesvc.wire import Wire


def a_busy_world() -> TroubledWorld:
    """Pages that were evicted, shared, given out again and are full in part; three requests run."""
    world = TroubledWorld(describe(num_pages=12), budget=12, credits=2, aging_s=4.0)
    for key, prompt in enumerate(([1] * 9, [1] * 8 + [2] * 5, [3] * 10, [1] * 9, [4] * 14), 1):
        world.submit(1, submission(key, prompt, max_tokens=4, cache_salt="salt" * (key == 3)))
        for _ in range(4):
            world.round()
    for key in (6, 7, 8):
        world.submit(1, submission(key, [key, *[1] * 8], max_tokens=12))
    for _ in range(9):
        world.round()
    assert world.core.live
    assert world.manager.evicted_total > 0
    return world


def adopted_by(world: TroubledWorld, journal: bytes) -> tuple[int, str]:
    """How many pages a fresh manager takes over from what the busy one left, and why not more;
    whatever it is, the books add up and every page holds what it is said to.
    """
    runner = world.wire.runner
    attached = Attached(
        runner.description, runner.boot_id, runner.last_executed, runner.last_manager_id
    )
    limits = Limits(step_budget_tokens=12, credits=2)
    manager = CacheManager(runner.description, Ledger(4, 12), limits)
    why, count = "", 0
    try:
        count = adopt(manager, decode(journal), attached)
    except UnusableJournalError as error:
        why = str(error)
    check_integrity(manager)
    invariants.pages_hold_their_prefix(manager, runner)
    assert manager.tree.evictable_count == count
    assert manager.tree.evictable_count + manager.pool.free_count == 12
    return count, why


def test_a_journal_cut_at_any_byte_is_taken_over_or_says_why_not() -> None:
    """A cut loses entries at its end. Where the runner executed their plans, nothing of it is of
    use; else all is taken over but for pages whose ids became known then.
    """
    world = a_busy_world()
    journal = world.core.journal.written
    whole, why = adopted_by(world, journal)
    assert (whole > 4, why) == (True, "")
    outcomes = {adopted_by(world, journal[:cut]) for cut in range(len(journal))}
    assert max(outcomes)[0] <= whole
    assert all((count == 0) == (why != "") for count, why in outcomes)
    reasons = {why.split(" ", 2)[1] for count, why in outcomes if not count}
    assert reasons == {"is", "ends"}, outcomes


def test_a_journal_changed_at_any_byte_is_taken_over_in_no_part_that_is_wrong() -> None:
    world = a_busy_world()
    journal = world.core.journal.written
    whole, _ = adopted_by(world, journal)
    for at in range(0, len(journal), 3):
        changed = bytearray(journal)
        changed[at] ^= 0x41
        count, why = adopted_by(world, bytes(changed))
        assert count <= whole
        assert (count == 0) == (why != "")


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.99, 1.0])
def test_who_goes_on_with_a_cut_journal_gives_every_answer_right(part: float) -> None:
    """Whatever was taken over; the digest of the page table is compared on the way."""
    world = a_busy_world()
    journal = world.core.journal
    journal.written = journal.written[: round(len(journal.written) * part)]
    world.kill_the_manager(checks_completeness=False)
    assert world.core.stream._digest_due
    world.check_end()
    assert not world.core.stream._digest_due


HEADS_OF_OTHERS = [
    ({"boot_id": "boot-9"}, "it is of boot_id boot-9, the runner's is boot-1"),
    ({"manager_id": "m"}, "the runner was driven last by another manager, "),
    ({"model_fingerprint": "other"}, "its model_fingerprint is other, the runner's is tiny"),
    ({"page_size": 8}, "its page_size is 8, the runner's is 4"),
    ({"num_pages": 9}, "its num_pages is 9, the runner's is 12"),
]


@pytest.mark.parametrize(
    ("change", "why"), HEADS_OF_OTHERS, ids=[next(iter(c)) for c, _ in HEADS_OF_OTHERS]
)
def test_a_journal_of_something_else_says_of_what(change: dict[str, object], why: str) -> None:
    world = a_busy_world()
    kept = decode(world.core.journal.written)
    assert kept.head is not None
    told = refused_by(world, kept._replace(head=kept.head._replace(**change)))
    assert told.startswith(why)


def refused_by(world: TroubledWorld, kept: Kept) -> str:
    runner = world.wire.runner
    attached = Attached(
        runner.description, runner.boot_id, runner.last_executed, runner.last_manager_id
    )
    limits = Limits(step_budget_tokens=12, credits=2)
    with pytest.raises(UnusableJournalError) as caught:
        adopt(CacheManager(runner.description, Ledger(4, 12), limits), kept, attached)
    return str(caught.value)


FILLED = Filled(100, ints(0), longs(0), longs(1), ints(1, 1, 1, 1).reshape(1, 4))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (FILLED._replace(page_ids=ints(12)), "page 12 is no page of the runner"),
        (FILLED._replace(page_ids=ints(-1)), "page -1 is no page of the runner"),
        (FILLED._replace(ids=ints(1, 1, 1, 16).reshape(1, 4)), "it has ids outside the vocabulary"),
        (FILLED._replace(ids=ints(1, 1, 1, -1).reshape(1, 4)), "it has ids outside the vocabulary"),
    ],
)
def test_a_writer_that_was_wrong_is_noticed(change: Filled, why: str) -> None:
    world = a_busy_world()
    kept = decode(world.core.journal.written)
    if not change.page_ids.any():
        change = change._replace(page_ids=a_page_of_which_nothing_is_known(world))
    entries = [*kept.entries, Entry(world.core.stream.last_plan_id, (change,))]
    assert refused_by(world, kept._replace(entries=entries)) == why


def test_a_page_that_two_fill_is_noticed() -> None:
    world = a_busy_world()
    kept = decode(world.core.journal.written)
    page = a_page_of_which_nothing_is_known(world)
    changes = tuple(FILLED._replace(page_ids=page, first_serial=serial) for serial in (100, 200))
    twice = Entry(kept.entries[-1].plan_id, changes)
    told = refused_by(world, kept._replace(entries=[*kept.entries, twice]))
    assert told == f"page {page[0]} is filled twice"


def a_page_of_which_nothing_is_known(world: TroubledWorld) -> Int32Array:
    known = world.manager.known
    return ints(next(idx for idx in range(1, 12) if not known.has_serials(ints(idx))))


def test_a_manager_that_came_back_makes_the_journal_of_the_one_between_void() -> None:
    """M1 is stopped; M2, with a journal of its own, runs; M1 returns and drives the runner on, with
    numbers that M2 wrote down for plans that were lost. M3 gets M2's journal.
    """
    runner = FakeRunner(describe(num_pages=12))
    limits = Limits(step_budget_tokens=8, credits=2)
    first = Wire(RecordedCore(limits), runner)
    first.attach()
    first.core.submit(1, submission(1, [1] * 9, max_tokens=8))
    first.step()
    first.cut()
    journal = MemoryJournal()
    second = Wire(RecordedCore(limits, journal), runner)
    second.attach()
    second.core.submit(1, submission(1, [2] * 18, max_tokens=3))
    second.send()
    second.send()  # written down, and lost
    second.cut()
    first.attach()
    first.step()
    first.step()
    assert runner.last_executed <= second.core.stream.last_plan_id
    first.cut()
    third = RecordedCore(limits, MemoryJournal(journal.written))
    Wire(third, runner).attach()
    assert third.totals.adopted_pages == 0


def test_a_page_table_that_is_not_the_managers_is_not_served_from() -> None:
    """The runner's table differs after the first plan on a stream: everything is computed again."""
    runner = FakeRunner(describe(num_pages=12))
    core = RecordedCore(Limits(step_budget_tokens=64, credits=2))
    wire = Wire(core, runner)
    wire.attach()
    core.submit(1, submission(1, [1] * 9, max_tokens=8))
    wire.step()
    wire.cut()
    wire.attach()
    wire.send()
    wire.deliver_plan()
    result = runner.execute_one()
    assert result.table_digest is not None
    with pytest.raises(DigestMismatchError, match="after plan 2 is not the manager's"):
        core.result(replace(result, table_digest=result.table_digest ^ 1))
    assert core.journal.written == b"", "who comes after a death right now adopts none of it"
    wire.cut()
    wire.attach()
    assert core.scheduler.manager.tree.evictable_count == 0
    wire.run_until_idle()
    tokens = wire.heard.tokens[1, 1]
    assert len(tokens) == 8


def test_pages_that_did_not_add_up_are_adopted_by_nobody() -> None:
    """One claimed twice, found while nothing is planned: no entry says so, so none is kept."""
    world = a_busy_world()
    world.damage_and_recount(a_page_of_the_tree_is_free_too)
    assert world.core.healer.healed_total == 1
    assert world.kill_the_manager() == 0
    world.check_end()


def test_a_page_that_stands_on_nothing_known_is_not_adopted() -> None:
    """No step leaves one so; if one did, it must not be taken for the first of a sequence."""
    world = a_busy_world()
    known, rows = world.manager.known, world.manager.rows
    idx = next(idx for idx in rows.open_rows if rows.num_noted_pages[idx] >= 2)
    first, second = world.manager.first_locs(idx)[:2] // 4
    known._serials[[first, second]] = 0
    rows.num_noted_pages[idx] = 1
    known.take_changes()
    world.manager.note_known(np.array([idx]))
    (filled,) = known.take_changes()
    assert isinstance(filled, Filled)
    assert filled.parents[0] == -1
