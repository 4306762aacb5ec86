"""A plan's message with its bulk integers as `bytes`: the same bytes on the wire, written faster.

`repeated sfixed32` is packed little-endian, and `repeated bool` one byte each, which is how numpy
holds int32 and bool. So a private twin of `runner.proto`, in which those fields are `bytes`, is
serialized from arrays without a Python object for each number. Whoever reads it reads the public
message. `tests/servicekit/test_plan_twin.py` proves the two equal.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from pagewire.v1 import recording_pb2, runner_pb2

from servicekit.plan import Plan
from servicekit.plan_codec import INT32_FIELDS

_PACKAGE, _TWIN_PACKAGE = ".pagewire.v1.", ".pagewire.twin."
_RULE_FIELDS = ("bias_ids", "stop_token_ids", "history_ids")  # bulk integers of RowRules
_Field = descriptor_pb2.FieldDescriptorProto


def _twin_file(original: Any) -> descriptor_pb2.FileDescriptorProto:
    twin = descriptor_pb2.FileDescriptorProto()
    original.CopyToProto(twin)
    twin.name, twin.package = _twin_path(twin.name), _TWIN_PACKAGE.strip(".")
    twin.dependency[:] = [_twin_path(path) for path in twin.dependency]
    del twin.service[:]
    for message in twin.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_PACKAGE, _TWIN_PACKAGE)
            bulk = field.type in (_Field.TYPE_SFIXED32, _Field.TYPE_BOOL)
            if bulk and field.label == _Field.LABEL_REPEATED:
                field.type, field.label = _Field.TYPE_BYTES, _Field.LABEL_OPTIONAL
    return twin


def _twin_path(path: str) -> str:
    return path.replace("pagewire/v1/", "pagewire/twin/")


def _twin_of(name: str) -> Any:
    descriptor = _POOL.FindMessageTypeByName(f"{_TWIN_PACKAGE}{name}".strip("."))
    return message_factory.GetMessageClass(descriptor)


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_twin_file(runner_pb2.DESCRIPTOR))
_POOL.Add(_twin_file(recording_pb2.DESCRIPTOR))
_ExecuteRequest = _twin_of("ExecuteRequest")
_RecordedMessage = _twin_of("RecordedMessage")


def plan_request(plan: Plan) -> Message:
    """An ExecuteRequest with this plan, in its twin form: serialize it, nothing else."""
    request: Any = _ExecuteRequest()
    _fill(request.plan, plan)
    return cast("Message", request)


def recorded_plan(plan: Plan) -> Message:
    """A RecordedMessage with this plan, in its twin form: serialize it, nothing else."""
    recorded: Any = _RecordedMessage()
    _fill(recorded.plan, plan)
    return cast("Message", recorded)


def _fill(message: Any, plan: Plan) -> None:
    message.manager_id = plan.manager_id
    message.plan_id = plan.plan_id
    message.acked_plan_id = plan.acked_plan_id
    message.reset_rows = plan.reset_rows
    for row in plan.open_rows:
        fields = dataclasses.asdict(row)
        if row.rules is not None:
            for name in _RULE_FIELDS:
                fields["rules"][name] = np.array(fields["rules"][name], dtype="<i4").tobytes()
        message.open_rows.add(**fields)
    for name in INT32_FIELDS:
        setattr(message, name, getattr(plan, name).astype("<i4", copy=False).tobytes())
    message.step_samples = plan.step_samples.tobytes()
    message.want_digest = plan.want_digest
