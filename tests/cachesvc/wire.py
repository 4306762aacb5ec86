"""A core and a fake runner joined by two queues that a test moves message by message, or cuts."""

from __future__ import annotations

from collections import defaultdict, deque

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.outputs import TokenLogprobs
from cachesvc.request import Admitted, FinishCause, Finished
from cachesvc.step import Sampled
from servicekit.plan import Failed, Plan, Refusal, Result
from tests.cachesvc.builders import describe, submission
from tests.cachesvc.fake_runner import FakeRunner
from tests.cachesvc.truth import truth_of

RequestKey = tuple[int, int]  # session_id, key


class Heard:
    """What sessions heard, by request. Nothing may come after the end of a request."""

    def __init__(self) -> None:
        self.resubmitted: set[RequestKey] = set()  # they are admitted first once more
        self.tokens: dict[RequestKey, list[int]] = defaultdict(list)
        self.finished: dict[RequestKey, Finished] = {}
        self.cached_len: dict[RequestKey, int] = {}
        self.logprobs: dict[RequestKey, list[TokenLogprobs]] = defaultdict(list)

    def take(self, core: Core) -> None:
        for output in core.take_outputs():
            if isinstance(output, Sampled):
                self._take_tokens(output)
            elif isinstance(output, TokenLogprobs):
                self.logprobs[output.session_id, output.key].append(output)
            elif isinstance(output, Admitted):
                request_key = (output.session_id, output.key)
                if request_key in self.resubmitted:
                    self.resubmitted.remove(request_key)
                    self.cached_len.setdefault(request_key, output.cached_len)
                    continue
                assert request_key not in self.cached_len, f"{request_key} admitted first twice"
                self.cached_len[request_key] = output.cached_len
            else:
                request_key = (output.session_id, output.key)
                assert request_key not in self.finished, f"{request_key} ended twice"
                self.finished[request_key] = output

    def _take_tokens(self, sampled: Sampled) -> None:
        columns = (column.tolist() for column in sampled)
        for session_id, key, token_id in zip(*columns, strict=True):
            assert (session_id, key) not in self.finished, "a token after the end"
            self.tokens[session_id, key].append(token_id)

    def cause(self, key: int, session_id: int = 1) -> FinishCause | None:
        ended = self.finished.get((session_id, key))
        return None if ended is None else ended.cause


class Wire:
    """Plans travel from `core` to `runner`, answers back; what is in the queues is unread."""

    def __init__(self, core: Core, runner: FakeRunner) -> None:
        self.core, self.runner = core, runner
        self.heard = Heard()
        self.sent: list[Plan] = []
        self.plans: deque[Plan] = deque()
        self.answers: deque[Result | Refusal | Failed] = deque()

    def attach(self) -> list[Plan]:
        """Attach and queue what is sent again in both directions. Returns the plans sent again."""
        answer, results = self.runner.attach(self.core.attach_request())
        resent = self.core.attached(answer)
        self.plans.extend(resent)
        self.answers.extend(results)
        self.heard.take(self.core)
        return resent

    def cut(self) -> None:
        """The stream ends; what was not read is lost."""
        self.plans.clear()
        self.answers.clear()
        self.core.lost()

    def send(self) -> Plan | None:
        plan = self.core.next_plan()
        if plan is not None:
            self.plans.append(plan)
            self.sent.append(plan)
        self.heard.take(self.core)
        return plan

    def deliver_plan(self) -> None:
        self.runner.take(self.plans.popleft())

    def execute(self) -> None:
        """Execute the oldest plan taken; its answer waits to be read, or meets no stream."""
        answer = self.runner.execute_one()
        if answer is not None and self.core.stream.attached:
            self.answers.append(answer)

    def deliver_answer(self) -> None:
        answer = self.answers.popleft()
        if isinstance(answer, Result):
            self.core.result(answer)
        elif isinstance(answer, Refusal):
            self.core.refused(answer)
        else:
            self.core.runner_failed(answer)
        self.heard.take(self.core)

    def deliver_all(self) -> None:
        """Everything in the queues is read and executed, and every answer is read."""
        while self.plans:
            self.deliver_plan()
        while not self.runner.idle:
            self.execute()
        while self.answers:
            self.deliver_answer()

    def step(self) -> Plan | None:
        """One plan, to its end: sent, executed, its result read."""
        plan = self.send()
        self.deliver_all()
        return plan

    def run_until_idle(self, most_plans: int = 2000) -> None:
        """Keep credits used up until there is nothing to do."""
        for _ in range(most_plans):
            while self.send() is not None:
                pass
            if not (self.plans or self.answers) and self.runner.idle:
                return
            if self.plans:
                self.deliver_plan()
            self.execute()
            if self.answers:
                self.deliver_answer()
        raise AssertionError(f"still busy after {most_plans} plans")


def wire(budget: int = 64, credits: int = 2, **changes: object) -> Wire:
    """A core attached to a fake runner of the tiny description, changed."""
    joined = Wire(
        Core(Limits(step_budget_tokens=budget, credits=credits)), FakeRunner(describe(**changes))
    )
    joined.attach()
    return joined


def answer(key: int = 1, max_tokens: int = 5) -> list[int]:
    """What that request of `wire_in_motion` gets, alone in the world."""
    return truth_of(submission(key, max_tokens=max_tokens), describe()).answer


def wire_in_motion(**changes: object) -> Wire:
    """A request of five tokens, its first known, two plans sent and not read."""
    joined = wire(**changes)
    joined.core.submit(1, submission(1, max_tokens=5))
    joined.step()
    joined.send()
    joined.send()
    return joined
