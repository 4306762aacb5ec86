"""What numpy wrote as bytes is what anybody reads as integers."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from pagewire.v1 import recording_pb2
from pagewire.v1 import runner_pb2 as pb

from servicekit.plan import Plan
from servicekit.plan_codec import decode_plan, encode_plan
from servicekit.plan_twin import plan_request, recorded_plan
from tests.servicekit.test_plan_codec import PLANS, assert_same


@settings(derandomize=True, deadline=None)
@given(PLANS)
def test_the_twin_of_a_plan_is_the_same_bytes(plan: Plan) -> None:
    public = pb.ExecuteRequest(plan=encode_plan(plan))
    written = plan_request(plan).SerializeToString()
    assert written == public.SerializeToString()
    assert_same(decode_plan(pb.ExecuteRequest.FromString(written).plan), plan)


@settings(derandomize=True, deadline=None)
@given(PLANS)
def test_the_twin_of_a_recorded_plan_is_the_same_bytes(plan: Plan) -> None:
    public = recording_pb2.RecordedMessage(plan=encode_plan(plan))
    assert recorded_plan(plan).SerializeToString() == public.SerializeToString()


@settings(derandomize=True, deadline=None)
@given(PLANS)
def test_a_plan_that_wants_a_digest_says_so_in_both_forms(plan: Plan) -> None:
    for want_digest in (False, True):
        asked = dataclasses.replace(plan, want_digest=want_digest)
        written = plan_request(asked).SerializeToString()
        assert written == pb.ExecuteRequest(plan=encode_plan(asked)).SerializeToString()
        assert pb.ExecuteRequest.FromString(written).plan.want_digest is want_digest
