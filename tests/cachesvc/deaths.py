"""Whom a runner's deaths are to be held against, told apart from how the manager counts them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from servicekit.plan import Failed, Plan
from tests.cachesvc.wire import RequestKey

MOST_DEATHS = 2


class Deaths:
    """How often a runner died with a request in its plans, and no token since."""

    def __init__(self) -> None:
        self.counts: Counter[RequestKey] = Counter()
        self.by_chance: set[RequestKey] = set()  # took part in one that no request was to blame for
        self.reported: Failed | None = None
        self._stepped: dict[int, list[RequestKey]] = {}  # by plan_id
        self._answered: set[int] = set()
        self._heard: dict[RequestKey, int] = defaultdict(int)  # tokens, by the last death

    def sent(self, plan: Plan, row_keys: Mapping[int, RequestKey]) -> None:
        """Who steps in a plan; one of the same number before it never happened."""
        self._stepped[plan.plan_id] = [row_keys[idx] for idx in plan.step_rows.tolist()]
        self._answered.discard(plan.plan_id)

    def answered(self, plan_id: int) -> None:
        self._answered.add(plan_id)

    def start_over(self) -> None:
        """No plan sent before counts any more."""
        self._stepped.clear()
        self._answered.clear()

    def forget(self) -> None:
        """The manager that counted is gone."""
        self.counts.clear()
        self.reported = None
        self.start_over()

    def died(self, live: Sequence[RequestKey], heard: Mapping[RequestKey, list[int]]) -> None:
        """A runner is gone for good; what it said before is in `reported`."""
        failed, self.reported = self.reported, None
        stepped = {
            request_key
            for plan_id, request_keys in self._stepped.items()
            if plan_id not in self._answered
            and (failed is None or failed.plan_id <= plan_id <= failed.last_plan_id)
            for request_key in request_keys
        }
        for request_key in stepped & set(live):
            self.counts[request_key] += 1
            self._heard[request_key] = len(heard[request_key])

    def hear(self, heard: Mapping[RequestKey, list[int]]) -> None:
        """Tokens came, which clear."""
        for request_key in [*self.counts]:
            if len(heard[request_key]) > self._heard[request_key]:
                del self.counts[request_key]

    def too_many(self) -> Iterable[RequestKey]:
        return [key for key, count in self.counts.items() if count >= MOST_DEATHS]
