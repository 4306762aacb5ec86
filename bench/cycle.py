"""One whole cycle of the manager in steady decode: take the result in, keep the books, schedule,
build the plan, encode it, put the tokens into the session's outbox. No device, no wire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cachesvc.core import Core
from cachesvc.limits import Limits
from cachesvc.request import Submission
from cachesvc.session import GatewaySession
from cachesvc.step import Sampled
from servicekit.plan import Attached, Plan, Result, RunnerDescription
from servicekit.plan_twin import plan_request
from servicekit.sampling import Sampling

CREDITS = 2
NO_STOP = np.zeros(0, dtype=np.int32)


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
        vocab_size=100_000,
        rank=0,
        num_ranks=1,
    )


def submission(key: int, prompt: np.ndarray, **changes: object) -> Submission:
    return Submission(
        key,
        f"request-{key}",
        prompt.astype(np.int32),
        Sampling(temperature=0),
        None,
        NO_STOP,
        **changes,
    )


class Cycle(NamedTuple):
    """One cycle's time, and the plan that it made."""

    seconds: float
    plan: Plan


def steady_decode(num_rows: int, page_size: int, num_steps: int, seed: int = 0) -> Iterator[Cycle]:
    """Cycles of rows that all decode, their prompts different and of different lengths."""
    rng = np.random.default_rng(seed)
    max_seq_len = 1024 + num_steps
    runner = description(num_rows, page_size, num_rows * max_seq_len // page_size, max_seq_len)
    core = Core(
        Limits(step_budget_tokens=num_rows * 1024, credits=CREDITS, long_prefill_tokens=1 << 20)
    )
    core.attached(Attached(runner, "boot", 0, ""))
    session = GatewaySession(1, "")
    for key in range(1, num_rows + 1):
        prompt = rng.integers(0, 100_000, 100 + int(rng.integers(0, 64)))
        core.submit(1, submission(key, prompt))
    sent = [core.next_plan() for _ in range(CREDITS)]
    core.take_outputs()
    for _ in range(num_steps):
        oldest = sent.pop(0)
        sampled_ids = rng.integers(0, 100_000, int(oldest.step_samples.sum())).astype(np.int32)
        began = time.perf_counter()
        core.result(Result(oldest.plan_id, sampled_ids, 0, 0))
        plan = core.next_plan()
        plan_request(plan).SerializeToString()
        for output in core.take_outputs():
            if isinstance(output, Sampled):
                session.put_tokens(output.keys.tolist(), output.token_ids.tolist())
        ended = time.perf_counter()
        _write_out(session)
        sent.append(plan)
        yield Cycle(ended - began, plan)


def _write_out(session: GatewaySession) -> None:
    """What the stream's writer does: take the message."""
    with suppress(StopIteration):
        session.take().send(None)
