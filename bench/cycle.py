"""One whole cycle of the manager in steady decode: decode the result, take it in, keep the books,
schedule, build the plan, encode it, put the tokens into the session's outbox and encode that. All
that the process does for a step, but for the wires themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pagewire.v1 import runner_pb2

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import Submission
from cachesvc.session import GatewaySession, put_sampled
from cachesvc.step import Sampled
from servicekit.plan import Attached, Int32Array, Plan, Result, RunnerDescription
from servicekit.plan_codec import decode_result, encode_result
from servicekit.plan_twin import plan_request
from servicekit.sampling import Sampling

CREDITS = 2
VOCAB_SIZE = 100_000
PROMPT_LENS = (100, 164)  # different, so that rows reach the end of a page at different times
NO_STOP = np.zeros(0, dtype=np.int32)


class Cycle(NamedTuple):
    """One cycle's time, and the plan that it made."""

    seconds: float
    plan: Plan


class SteadyDecode(NamedTuple):
    """Rows that all decode: plans before the first cycle, then cycles."""

    runner: RunnerDescription
    first_plans: list[Plan]
    cycles: Iterator[Cycle]


def description(
    num_rows: int, page_size: int, num_pages: int, max_seq_len: int
) -> RunnerDescription:
    return RunnerDescription(
        model_fingerprint="bench",
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        dtype="float32",
        page_size=page_size,
        num_pages=num_pages,
        num_rows=num_rows,
        max_seq_len=max_seq_len,
        vocab_size=VOCAB_SIZE,
        rank=0,
        num_ranks=1,
    )


def submission(key: int, prompt_ids: Int32Array) -> Submission:
    return Submission(
        key,
        f"request-{key}",
        prompt_ids,
        Sampling(temperature=0),
        max_tokens=None,
        stop_token_ids=NO_STOP,
    )


def random_ids(rng: np.random.Generator, count: int) -> Int32Array:
    return rng.integers(0, VOCAB_SIZE, count, dtype=np.int32)


def steady_decode(num_rows: int, page_size: int, num_steps: int) -> SteadyDecode:
    rng = np.random.default_rng(0)
    max_seq_len = PROMPT_LENS[1] + num_steps + CREDITS
    num_pages = num_rows * (max_seq_len // page_size + 1)
    runner = description(num_rows, page_size, num_pages, max_seq_len)
    core = Core(Limits(step_budget_tokens=num_rows * PROMPT_LENS[1], credits=CREDITS))
    core.attached(Attached(runner, "boot", 0, ""))
    for key in range(1, num_rows + 1):
        core.submit(1, submission(key, random_ids(rng, int(rng.integers(*PROMPT_LENS)))))
    first_plans = [plan for _ in range(CREDITS) if (plan := core.next_plan()) is not None]
    core.take_outputs()
    return SteadyDecode(runner, first_plans, _cycles(core, first_plans, num_steps, rng))


def _cycles(
    core: Core, first_plans: list[Plan], num_steps: int, rng: np.random.Generator
) -> Iterator[Cycle]:
    sessions, under_way = {1: GatewaySession(1, "")}, list(first_plans)
    for _ in range(num_steps):
        oldest = under_way.pop(0)
        sampled_ids = random_ids(rng, int(oldest.step_samples.sum()))
        result = Result(oldest.plan_id, sampled_ids, 0, 0, core.stream.due_digest)
        message = encode_result(result).SerializeToString()
        began = time.perf_counter()
        core.result(decode_result(runner_pb2.Result.FromString(message)))
        plan = core.next_plan()
        assert plan is not None
        plan_request(plan).SerializeToString()
        for output in core.take_outputs():
            assert isinstance(output, Sampled)
            put_sampled(sessions, output, time.time_ns() // 1000)
        _write_out(sessions[1])
        ended = time.perf_counter()
        under_way.append(plan)
        yield Cycle(ended - began, plan)


def _write_out(session: GatewaySession) -> None:
    """What the stream's writer does: take the message, and serialize it."""
    try:
        session.take().send(None)
    except StopIteration as taken:
        taken.value.SerializeToString()
