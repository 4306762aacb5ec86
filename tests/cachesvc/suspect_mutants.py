"""Bugs to plant in who is held to blame for a runner's death, and what comes of it."""

from __future__ import annotations

from cachesvc import suspects
from cachesvc.plan_stream import PlanStream
from cachesvc.recovery import Recovery
from cachesvc.suspects import Suspects
from tests.cachesvc.mutants import Mutants, Patch

MUTANTS = Mutants()


@MUTANTS.plant
def a_token_does_not_clear(patch: Patch) -> None:
    def wrong(self, rows):
        if self._tried is not None and rows.known_len[self._tried.table_idx] > 3:
            self._tried = None

    patch.setattr(Suspects, "tokens_came", wrong)


@MUTANTS.plant
def all_suspects_are_tried_at_once(patch: Patch) -> None:
    patch.setattr(Suspects, "may_get_a_row", lambda self, req, rows: True)


@MUTANTS.plant
def newcomers_join_the_one_that_is_tried(patch: Patch) -> None:
    right = Suspects.may_get_a_row

    def wrong(self, req, rows):
        return not req.runner_deaths or right(self, req, rows)

    patch.setattr(Suspects, "may_get_a_row", wrong)


@MUTANTS.plant
def only_the_oldest_plan_is_blamed(patch: Patch) -> None:
    right = PlanStream.stepped_under_way

    def wrong(self, failed):
        later = [self._sent.pop() for _ in range(len(self._sent) - 1)]
        stepped = right(self, failed)
        self._sent.extend(reversed(later))
        return stepped

    patch.setattr(PlanStream, "stepped_under_way", wrong)


@MUTANTS.plant
def what_the_runner_says_of_the_plan_is_ignored(patch: Patch) -> None:
    patch.setattr(Recovery, "failed", lambda self, failed: None)


@MUTANTS.plant
def what_one_runner_said_counts_for_the_next(patch: Patch) -> None:
    right = Recovery.attached

    def wrong(self, attached):
        said = self._failed
        plans = right(self, attached)
        self._failed = said
        return plans

    patch.setattr(Recovery, "attached", wrong)


@MUTANTS.plant
def one_death_is_enough(patch: Patch) -> None:
    patch.setattr(suspects, "MAX_RUNNER_DEATHS", 1)


@MUTANTS.plant
def no_number_of_deaths_is_enough(patch: Patch) -> None:
    patch.setattr(suspects, "MAX_RUNNER_DEATHS", 1000)
