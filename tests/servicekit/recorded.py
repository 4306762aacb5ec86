"""Recordings made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pagewire.v1 import runner_pb2

from servicekit.plan import Attached, Failed, Int32Array, Plan, Refusal, Result
from servicekit.plan_codec import encode_attached, encode_failed, encode_refusal, encode_result
from servicekit.recording import new_recording
from tests.cachesvc.builders import describe


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def attached(
    boot_id: str = "boot-1", last_executed: int = 0, last_manager_id: str = "", **changes: Any
) -> runner_pb2.Attached:
    return encode_attached(Attached(describe(**changes), boot_id, last_executed, last_manager_id))


ATTACHED = attached()


def result(plan_id: int, *sampled: int, table_digest: int | None = None) -> runner_pb2.Result:
    return encode_result(Result(plan_id, ids(*sampled), 2, 3, table_digest))


def refusal(plan_id: int) -> runner_pb2.Refusal:
    return encode_refusal(Refusal(plan_id, "STORE", "a store", (0,), plan_id - 1))


def failed(plan_id: int) -> runner_pb2.Failed:
    return encode_failed(Failed(plan_id, "RuntimeError: the device broke", plan_id))


def write(path: Path, *records: Any) -> Path:
    """A recording of plans, and messages of the runner."""
    with new_recording(path) as writer:
        for record in records:
            if isinstance(record, Plan):
                writer.plan(record)
            else:
                getattr(writer, type(record).__name__.lower())(record)
    return path
