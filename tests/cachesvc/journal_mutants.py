"""Bugs to plant in the journal, and in what is taken over by it."""

from __future__ import annotations

from cachesvc import adoption, recovery
from cachesvc.journal import Filled, Removed
from cachesvc.known_pages import KnownPages
from cachesvc.manager import CacheManager
from cachesvc.recovery import Recovery
from servicekit.plan import Attached
from tests.cachesvc.memory_journal import MemoryJournal
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


@MUTANTS.plant
def a_plan_is_written_down_after_it_is_sent(patch: Patch) -> None:
    right = Recovery.write_down

    def wrong(self, plan_id):
        late, self.late = getattr(self, "late", None), plan_id
        if late is not None:
            right(self, late)

    patch.setattr(Recovery, "write_down", wrong)


@MUTANTS.plant
def a_plan_that_is_missing_is_not_missed(patch: Patch) -> None:
    """Together with the bug above, which it would hide."""
    a_plan_is_written_down_after_it_is_sent(patch)

    def wrong(kept, attached):
        if kept.head is None or kept.head.boot_id != attached.boot_id:
            raise adoption.UnusableJournalError("another memory")

    patch.setattr(adoption, "_check", wrong)


@MUTANTS.plant
def the_journal_is_not_begun_anew_after_a_death(patch: Patch) -> None:
    right = recovery.adopt

    def wrong(manager, kept, attached):
        count = right(manager, kept, attached)
        manager.known.rewrite_due = False
        return count

    patch.setattr(recovery, "adopt", wrong)


@MUTANTS.plant
def the_journal_is_not_begun_anew_after_a_refusal(patch: Patch) -> None:
    right = CacheManager.free_the_rest

    def wrong(self):
        before = self.known.rewrite_due
        right(self)
        self.known.rewrite_due = before

    patch.setattr(CacheManager, "free_the_rest", wrong)


@MUTANTS.plant
def pages_are_taken_over_from_a_runner_that_another_drove(patch: Patch) -> None:
    right = adoption._check

    def wrong(kept, attached: Attached):
        if kept.head is not None:
            kept = kept._replace(head=kept.head._replace(manager_id=attached.last_manager_id))
        right(kept, attached)

    patch.setattr(adoption, "_check", wrong)


@MUTANTS.plant
def pages_are_taken_over_that_were_never_filled(patch: Patch) -> None:
    right = adoption._fill
    patch.setattr(adoption, "_fill", lambda change, _, *rest: right(change, 1 << 60, *rest))


@MUTANTS.plant
def what_was_given_up_is_taken_over(patch: Patch) -> None:
    """And what is filled then counts more."""
    right = adoption._fill

    def fill(change: Filled, last_executed, pages, serial_of):
        for page_id, filled_by in zip(change.page_ids, change.filled_by, strict=True):
            if filled_by <= last_executed and (serial := serial_of.pop(page_id, None)):
                pages.pop(serial)
        right(change, last_executed, pages, serial_of)

    patch.setattr(adoption, "_fill", fill)
    patch.setattr(adoption, "_remove", lambda *_: None)


@MUTANTS.plant
def what_a_lost_plan_gives_up_is_given_up(patch: Patch) -> None:
    right = MemoryJournal.append

    def wrong(self, entry):
        right(self, entry._replace(plan_id=0))
        right(self, entry._replace(changes=()))

    patch.setattr(MemoryJournal, "append", wrong)


@MUTANTS.plant
def who_stands_on_a_duplicate_is_lost_with_it(patch: Patch) -> None:
    right = KnownPages.note_removed
    patch.setattr(KnownPages, "note_removed", lambda self, locs, _=None: right(self, locs))


@MUTANTS.plant
def full_pages_wait_until_they_are_shared(patch: Patch) -> None:
    from cachesvc.scheduler import Scheduler

    right = Scheduler._step

    def wrong(self, *arguments):
        note_known = self.manager.note_known
        self.manager.note_known = lambda rows: None
        try:
            return right(self, *arguments)
        finally:
            self.manager.note_known = note_known

    patch.setattr(Scheduler, "_step", wrong)


@MUTANTS.plant
def salts_are_not_written_down(patch: Patch) -> None:
    right = MemoryJournal.append

    def wrong(self, entry):
        changes = tuple(
            change if isinstance(change, Removed) else change._replace(salts=())
            for change in entry.changes
        )
        right(self, entry._replace(changes=changes))

    patch.setattr(MemoryJournal, "append", wrong)
