"""`pagewire replay`: a recorded plan stream executed once more, its outcome compared.

What is replayed, and what is left out, `servicekit.plan_history` says. Plans are sent as they were
recorded but for what belongs to a stream: our own manager_id, numbers that go on from the runner's
last plan, our own acknowledgements, a reset of the rows with the first one. A runner that executed
plans before will do, as long as nobody else is attached.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import grpc
import numpy as np
from pagewire.v1 import runner_pb2 as pb

from servicekit.client import stream_channel
from servicekit.errors import FatalError, PagewireError, Reason, SetupError, Unavailable
from servicekit.plan import PROTOCOL_VERSION, Attach, Attached, Failed, Plan, Refusal, Result
from servicekit.plan_codec import (
    decode_attached,
    decode_failed,
    decode_refusal,
    decode_result,
    encode_attach,
)
from servicekit.plan_history import ExecutedPlan, PlanHistory, mismatch
from servicekit.plan_twin import plan_request
from servicekit.status import error_of

PLANS_AHEAD = 2
LIVE_STREAM_PATIENCE_S = 2.0  # a stream that just ended may still count as live
RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What replaying gave, up to the first difference if there is one."""

    num_results: int
    num_tokens: int
    tokens_sha256: str  # of all sampled ids as int32, little-endian, in plan order
    digests_sha256: str  # of all page table digests as fixed64, in plan order; "": none came
    last_digest: int | None  # 0 when the last plan left no row open
    difference: str  # the first one, in words; "": everything is as recorded


class _Sent(NamedTuple):
    plan: Plan
    executed: ExecutedPlan


async def replay(history: PlanHistory, address: str) -> Outcome:
    """Execute every plan of `history` on the runner at `address`, until one comes out otherwise.

    Errors: SetupError when that runner is of another kind, driven by somebody else or not there;
    PagewireError when it is lost in the middle.
    """
    manager_id = secrets.token_hex(8)
    async with stream_channel(address) as channel:
        execute: Any = channel.stream_stream(
            "/pagewire.v1.RunnerService/Execute",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.ExecuteResponse.FromString,
        )
        call, attached = await _attach(execute, address, history, manager_id)
        try:
            if differs := mismatch(history.description, attached.description):
                raise SetupError(
                    f"the runner at {address} is not like the recorded one: {differs}: start one "
                    "with the recorded settings"
                )
            return await _Replay(call, manager_id, attached.last_executed).run(history)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.InvalidStateError as error:  # grpc.aio: written to after the call ended
            raise _ended(address) from error
        finally:
            call.cancel()


async def _attach(
    execute: Any, address: str, history: PlanHistory, manager_id: str
) -> tuple[Any, Attached]:
    """A live stream and the runner's answer. Errors: SetupError."""
    attach = Attach(PROTOCOL_VERSION, manager_id, "", None, history.description.model_fingerprint)
    deadline = asyncio.get_running_loop().time() + LIVE_STREAM_PATIENCE_S
    while True:
        call = execute()
        try:
            await call.write(pb.ExecuteRequest(attach=encode_attach(attach)))
            answer: Any = await call.read()
        except grpc.aio.AioRpcError as error:
            failure = error_of(error)
            live = failure.reason is Reason.STREAM_ALREADY_LIVE
            if not live or asyncio.get_running_loop().time() > deadline:
                raise _unattached(address, failure) from error
            await asyncio.sleep(RETRY_S)
            continue
        except asyncio.InvalidStateError as error:
            raise SetupError(f"the runner at {address} ended the stream at once") from error
        if answer is grpc.aio.EOF or answer.WhichOneof("response") != "attached":
            raise SetupError(f"what answers at {address} is no runner")
        return call, decode_attached(answer.attached)


def _unattached(address: str, failure: PagewireError) -> SetupError:
    if failure.reason is Reason.STREAM_ALREADY_LIVE:
        return SetupError(
            f"the runner at {address} is driven by a manager: stop its cachesvc, or replay on "
            "another runner"
        )
    if failure.reason is Reason.SESSION_LOST:
        return SetupError(f"no runner answers at {address}: {failure.message}")
    return SetupError(f"the runner at {address} cannot replay this: {failure.message}")


def _ended(address: str) -> Unavailable:
    return Unavailable(Reason.SESSION_LOST, f"the runner at {address} ended the stream")


class _Replay:
    """One stream from its first plan to its last result, with a tally of what came."""

    def __init__(self, call: Any, manager_id: str, last_executed: int) -> None:
        self._call = call
        self._manager_id = manager_id
        self._last_former_plan_id = last_executed  # results up to it are not ours
        self._last_plan_id = last_executed
        self._acked_plan_id = last_executed
        self._sent: deque[_Sent] = deque()  # without a result so far
        self._num_results = 0
        self._num_tokens = 0
        self._tokens = hashlib.sha256()
        self._digests = hashlib.sha256()
        self._last_digest: int | None = None

    async def run(self, history: PlanHistory) -> Outcome:
        for plan, executed in history.read_plans():
            if len(self._sent) == PLANS_AHEAD and (difference := await self._take_one()):
                return self._outcome(difference)
            await self._send(plan, executed)
        while self._sent:
            if difference := await self._take_one():
                return self._outcome(difference)
        return self._outcome("")

    async def _send(self, plan: Plan, executed: ExecutedPlan) -> None:
        first = self._last_plan_id == self._last_former_plan_id
        self._last_plan_id += 1
        renumbered = replace(
            plan,
            manager_id=self._manager_id,
            plan_id=self._last_plan_id,
            acked_plan_id=self._acked_plan_id,
            reset_rows=plan.reset_rows or first,
            want_digest=executed.table_digest is not None,
        )
        self._sent.append(_Sent(renumbered, executed))
        await self._call.write(plan_request(renumbered))

    async def _take_one(self) -> str:
        """Compare the answer to the oldest plan sent. Returns the difference, "" when there is
        none.
        """
        sent = self._sent.popleft()
        answer = await self._answer()
        if answer.plan_id != sent.plan.plan_id:
            raise FatalError(
                f"the runner answered plan {answer.plan_id}, due was {sent.plan.plan_id}"
            )
        plan_id = sent.executed.plan_id
        if isinstance(answer, Refusal):
            return f"plan {plan_id}: executed when recorded, now refused: {answer.message}"
        if isinstance(answer, Failed):
            return f"plan {plan_id}: executed when recorded, now the runner fails: {answer.message}"
        self._acked_plan_id = answer.plan_id
        self._num_results += 1
        self._num_tokens += len(answer.sampled_ids)
        self._tokens.update(answer.sampled_ids.astype("<i4", copy=False).tobytes())
        if answer.table_digest is not None:
            self._last_digest = answer.table_digest
            self._digests.update(answer.table_digest.to_bytes(8, "little"))
        return _difference(sent, answer)

    async def _answer(self) -> Result | Refusal | Failed:
        """The next one that is for a plan of ours."""
        while True:
            answer = await self._call.read()
            if answer is grpc.aio.EOF:
                raise Unavailable(Reason.SESSION_LOST, "the runner ended the stream")
            if answer.HasField("refusal"):
                return decode_refusal(answer.refusal)
            if answer.HasField("failed"):
                return decode_failed(answer.failed)
            result = decode_result(answer.result)
            if result.plan_id > self._last_former_plan_id:
                return result

    def _outcome(self, difference: str) -> Outcome:
        return Outcome(
            self._num_results,
            self._num_tokens,
            self._tokens.hexdigest(),
            "" if self._last_digest is None else self._digests.hexdigest(),
            self._last_digest,
            difference,
        )


def _difference(sent: _Sent, result: Result) -> str:
    """Where a result is not as recorded, "" when it is."""
    executed = sent.executed
    plan_id, expected, got = executed.plan_id, executed.sampled_ids, result.sampled_ids
    if len(expected) != len(got):
        return f"plan {plan_id}: expected {len(expected)} tokens, got {len(got)}"
    wrong = np.flatnonzero(expected != got)
    if len(wrong):
        first = wrong[0]
        row = sent.plan.step_rows[sent.plan.step_samples][first]
        return f"plan {plan_id}, row {row}: expected token {expected[first]}, got {got[first]}"
    if executed.table_digest != result.table_digest:
        return (
            f"plan {plan_id}: expected page table {digest_text(executed.table_digest)}, "
            f"got {digest_text(result.table_digest)}"
        )
    return ""


def digest_text(digest: int | None) -> str:
    """A digest as it is printed."""
    return "none" if digest is None else f"{digest:016x}"
