"""What a client leaves out, and what it sets, arrives so."""

from __future__ import annotations

import pytest
from pagewire.v1 import sampling_pb2 as pb

from servicekit.errors import InvalidArgument
from servicekit.sampling import Sampling
from servicekit.sampling_codec import decode_sampling, encode_sampling

FULL = Sampling(
    temperature=0.5,
    top_k=7,
    top_p=0.25,
    seed=-3,
    min_p=0.125,
    repetition_penalty=1.5,
    presence_penalty=-1.0,
    frequency_penalty=2.0,
    logit_bias=((5, -100.0), (0, 2.5)),
)


def test_what_is_absent_has_its_default() -> None:
    assert decode_sampling(pb.SamplingParams()) == Sampling()
    assert decode_sampling(pb.SamplingParams(), seed=9) == Sampling(seed=9)


def test_a_seed_that_is_given_stays_0_too() -> None:
    assert decode_sampling(pb.SamplingParams(seed=0), seed=9).seed == 0


@pytest.mark.parametrize("sampling", [Sampling(), FULL])
def test_both_ways_it_is_the_same(sampling: Sampling) -> None:
    assert decode_sampling(encode_sampling(sampling), seed=9) == sampling


def test_zero_is_not_absent() -> None:
    assert decode_sampling(pb.SamplingParams(temperature=0)).temperature == 0
    with pytest.raises(InvalidArgument, match=r"sampling\.top_p is 0"):
        decode_sampling(pb.SamplingParams(top_p=0))
