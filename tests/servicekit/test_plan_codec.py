"""What is encoded, sent and decoded is what it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagewire.v1 import runner_pb2 as pb

from servicekit.plan import (
    Attach,
    Attached,
    Failed,
    Logprobs,
    Plan,
    Refusal,
    Result,
    RowOpen,
    RowRules,
    RunnerDescription,
)
from servicekit.plan_codec import (
    INT32_FIELDS,
    decode_attach,
    decode_attached,
    decode_failed,
    decode_plan,
    decode_refusal,
    decode_result,
    encode_attach,
    encode_attached,
    encode_failed,
    encode_plan,
    encode_refusal,
    encode_result,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
ARRAYS = st.lists(INT32, max_size=9).map(lambda values: np.array(values, dtype=np.int32))
BOOLS = st.lists(st.booleans(), max_size=9).map(lambda values: np.array(values, dtype=np.bool_))
INT32_TUPLES = st.lists(INT32, max_size=5).map(tuple)
ROW_RULES = st.builds(
    RowRules,
    min_p=FLOAT32,
    repetition_penalty=FLOAT32,
    presence_penalty=FLOAT32,
    frequency_penalty=FLOAT32,
    bias_ids=INT32_TUPLES,
    biases=st.lists(FLOAT32, max_size=5).map(tuple),
    min_tokens=INT32,
    stop_token_ids=INT32_TUPLES,
    history_ids=INT32_TUPLES,
    logprobs=st.none() | INT32,
)
ROW_OPENS = st.builds(
    RowOpen,
    table_idx=INT32,
    prompt_len=INT32,
    temperature=FLOAT32,
    top_k=INT32,
    top_p=FLOAT32,
    seed=INT64,
    choice=INT32,
    traceparent=st.text(),
    rules=st.none() | ROW_RULES,
)
PLANS = st.builds(
    Plan,
    manager_id=st.text(),
    plan_id=INT64,
    acked_plan_id=INT64,
    reset_rows=st.booleans(),
    open_rows=st.lists(ROW_OPENS, max_size=3).map(tuple),
    step_samples=BOOLS,
    want_digest=st.booleans(),
    **dict.fromkeys(INT32_FIELDS, ARRAYS),
)
DESCRIPTIONS = st.builds(
    RunnerDescription,
    **{
        field.name: st.text() if field.type == "str" else INT32
        for field in dataclasses.fields(RunnerDescription)
    },
)
REASONS = [
    name.removeprefix("REFUSAL_REASON_")
    for name in pb.RefusalReason.keys()  # noqa: SIM118 # an enum, no dict
]


def through_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def assert_same(left: Any, right: Any) -> None:
    """Equal field by field; arrays in type and length too."""
    assert type(left) is type(right)
    for field in dataclasses.fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, field.name
            assert one.tolist() == other.tolist(), field.name
        else:
            assert one == other, field.name


@settings(derandomize=True, deadline=None)
@given(PLANS)
def test_a_plan(plan: Plan) -> None:
    assert_same(decode_plan(through_the_wire(encode_plan(plan))), plan)


@settings(derandomize=True, deadline=None)
@given(
    st.builds(
        Result,
        plan_id=INT64,
        sampled_ids=ARRAYS,
        waited_us=INT64,
        device_us=INT64,
        table_digest=st.none() | st.integers(0, 2**64 - 1),
        launch_us=INT64,
        gap_us=st.none() | INT64,
        from_graph=st.booleans(),
    )
)
def test_a_result(result: Result) -> None:
    assert_same(decode_result(through_the_wire(encode_result(result))), result)


@settings(derandomize=True, deadline=None)
@given(
    st.builds(
        Refusal,
        plan_id=INT64,
        reason=st.sampled_from(REASONS),
        message=st.text(),
        named_rows=st.lists(INT32, max_size=4).map(tuple),
        last_accepted_plan_id=INT64,
    )
)
def test_a_refusal(refusal: Refusal) -> None:
    assert decode_refusal(through_the_wire(encode_refusal(refusal))) == refusal


@settings(derandomize=True, deadline=None)
@given(st.builds(Failed, plan_id=INT64, message=st.text(), last_plan_id=INT64))
def test_a_failure(failed: Failed) -> None:
    assert decode_failed(through_the_wire(encode_failed(failed))) == failed


@settings(derandomize=True, deadline=None)
@given(
    st.builds(
        Attach,
        protocol_version=INT32,
        manager_id=st.text(),
        boot_id=st.text(),
        last_result_plan_id=st.none() | INT64,
        model_fingerprint=st.text(),
    )
)
def test_an_attach(attach: Attach) -> None:
    assert decode_attach(through_the_wire(encode_attach(attach))) == attach


def test_no_digest_is_not_the_same_as_zero() -> None:
    none = Result(1, np.array([], dtype=np.int32), 0, 0)
    assert decode_result(through_the_wire(encode_result(none))).table_digest is None
    zero = dataclasses.replace(none, table_digest=0)
    assert decode_result(through_the_wire(encode_result(zero))).table_digest == 0


def test_no_last_result_is_not_the_same_as_zero() -> None:
    nothing = Attach(1, "m", "b", None, "")
    assert decode_attach(encode_attach(nothing)).last_result_plan_id is None
    zero = dataclasses.replace(nothing, last_result_plan_id=0)
    assert decode_attach(through_the_wire(encode_attach(zero))).last_result_plan_id == 0


@settings(derandomize=True, deadline=None)
@given(
    st.builds(
        Attached,
        description=DESCRIPTIONS,
        boot_id=st.text(),
        last_executed=INT64,
        last_manager_id=st.text(),
    )
)
def test_an_attached(attached: Attached) -> None:
    assert decode_attached(through_the_wire(encode_attached(attached))) == attached


def test_every_field_of_a_plan_is_a_field_of_the_message() -> None:
    assert {field.name for field in dataclasses.fields(Plan)} == set(
        pb.Plan.DESCRIPTOR.fields_by_name
    )
    assert {field.name for field in dataclasses.fields(RowOpen)} == set(
        pb.RowOpen.DESCRIPTOR.fields_by_name
    )


def test_every_int32_array_is_sfixed32_on_the_wire() -> None:
    for name in INT32_FIELDS:
        field = pb.Plan.DESCRIPTOR.fields_by_name[name]
        assert field.type == field.TYPE_SFIXED32, name


def test_a_reason_that_no_rule_has_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="SPITE"):
        encode_refusal(Refusal(1, "SPITE", "", (), 0))


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_log_probabilities_of_a_result(num_top: int) -> None:
    given = Logprobs(
        samples=np.array([0, 4], dtype=np.int32),
        chosen=np.array([-0.25, -1e9], dtype=np.float32),
        top_ids=np.arange(2 * num_top, dtype=np.int32).reshape(2, num_top),
        top=-np.arange(2 * num_top, dtype=np.float32).reshape(2, num_top),
    )
    result = Result(7, np.zeros(5, dtype=np.int32), 1, 2, logprobs=given)
    decoded = decode_result(through_the_wire(encode_result(result))).logprobs
    assert decoded is not None
    for one, other in zip(decoded, given, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
        assert one.shape == other.shape
