"""The comparison notices what chaos may do to an answer: each kind is planted here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pagewire.v1 import inference_pb2 as pb

from tests.chaos.heard import Answer, Heard, SeamError
from tests.chaos.pool import Asked, Use
from tests.chaos.verdict import (
    DOUBLED,
    EXACT,
    LEFT,
    LOST,
    MISMATCHED,
    Judged,
    of_choice,
    of_heard,
    of_ids,
)

IDS = (5, 7, 7, 9, 5, 7, 11)
ANSWER = Answer("five seven", IDS, "1 None None", 3, len(IDS))
USE = Use(0, Asked(0, pb.GenerateRequest()), "", None)


@pytest.mark.parametrize("at", range(len(IDS)))
@pytest.mark.parametrize("count", [1, 2])
def test_a_missing_stretch_anywhere_is_lost(at: int, count: int) -> None:
    assert of_ids(IDS, [*IDS[:at], *IDS[at + count :]]) == LOST


@pytest.mark.parametrize("at", range(len(IDS)))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stretch_that_comes_again_is_doubled(at: int, count: int) -> None:
    end = min(at + count, len(IDS))
    assert of_ids(IDS, [*IDS[:end], *IDS[at:end], *IDS[end:]]) == DOUBLED


@pytest.mark.parametrize("at", range(len(IDS)))
def test_another_token_anywhere_is_a_mismatch(at: int) -> None:
    assert of_ids(IDS, [*IDS[:at], 99, *IDS[at + 1 :]]) == MISMATCHED
    assert of_ids(IDS, [*IDS[:at], 99, *IDS[at:]]) == MISMATCHED


def test_the_same_ids_are_exact() -> None:
    assert of_ids(IDS, list(IDS)) == EXACT
    assert of_choice(ANSWER, ANSWER) == EXACT


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, text="five sevn"),
        replace(ANSWER, end="2 None None"),
        replace(ANSWER, completion_tokens=6),
        replace(ANSWER, prompt_tokens=4),
    ],
)
def test_the_same_ids_with_another_text_end_or_usage_are_a_mismatch(other: Answer) -> None:
    assert of_choice(ANSWER, other) == MISMATCHED


def heard_of(*deltas: pb.Delta, finished: bool = True) -> Heard:
    heard = Heard(1)
    heard.begin_try()
    heard.take(pb.GenerateResponse(started=pb.Started()))
    for delta in deltas:
        heard.take(pb.GenerateResponse(delta=delta))
    if finished:
        usage = pb.Usage(prompt_tokens=3, completion_tokens=len(IDS))
        heard.take(pb.GenerateResponse(finished=pb.Finished(reason=1, usage=usage)))
    return heard


WHOLE = pb.Delta(text="five seven", token_ids=IDS)


def test_an_answer_that_was_heard_whole_is_exact() -> None:
    assert of_heard((ANSWER,), heard_of(WHOLE), USE) == EXACT


@pytest.mark.parametrize(
    ("ids", "verdict"),
    [
        ((5, 7, 7, 9, 9, 5, 7, 11), DOUBLED),
        ((5, 7, 7, 5, 7, 11), LOST),
        ((5, 7, 7, 8, 5, 7, 11), MISMATCHED),
    ],
)
def test_a_stream_with_a_doubled_a_lost_or_another_token_is_counted_as_such(
    ids: tuple[int, ...], verdict: str
) -> None:
    deltas = [pb.Delta(token_ids=[token_id]) for token_id in ids]
    judged = Judged()
    judged.judge((ANSWER,), heard_of(pb.Delta(text="five seven"), *deltas), USE)
    assert judged.counts == {verdict: 1}
    assert len(judged.findings) == judged.wrong == 1


def test_an_error_or_silence_is_lost_whatever_came_before() -> None:
    heard = heard_of(WHOLE, finished=False)
    heard.failure = "UNAVAILABLE"
    judged = Judged()
    judged.judge((ANSWER,), heard, USE)
    assert judged.counts == {LOST: 1}
    assert judged.wrong == 1
    assert "UNAVAILABLE" in judged.findings[0]


def test_a_client_that_left_is_right_only_as_far_as_it_came() -> None:
    leaver = USE._replace(leaves_after=2)
    right = heard_of(pb.Delta(text="fi", token_ids=IDS[:3]), finished=False)
    other_text = heard_of(pb.Delta(text="fo", token_ids=IDS[:3]), finished=False)
    other_ids = heard_of(pb.Delta(text="fi", token_ids=(5, 9, 9)), finished=False)
    assert of_heard((ANSWER,), right, leaver) == LEFT
    assert of_heard((ANSWER,), other_text, leaver) == MISMATCHED
    assert of_heard((ANSWER,), other_ids, leaver) == MISMATCHED
    assert of_heard((ANSWER,), right, USE) == LOST


def test_an_answer_resumed_in_mid_text_is_joined_without_what_was_there_already() -> None:
    heard = heard_of(pb.Delta(text="five s", token_ids=IDS[:4]), finished=False)
    assert heard.begin_try() == list(IDS[:4])
    heard.take(pb.GenerateResponse(started=pb.Started(resumed_text="five")))
    heard.take(pb.GenerateResponse(delta=pb.Delta(text=" seven", token_ids=IDS[4:])))
    usage = pb.Usage(prompt_tokens=3, completion_tokens=len(IDS))
    heard.take(pb.GenerateResponse(finished=pb.Finished(reason=1, usage=usage)))
    assert of_heard((ANSWER,), heard, USE) == EXACT


def test_a_resumed_answer_that_does_not_fit_is_noticed() -> None:
    heard = heard_of(pb.Delta(text="five s", token_ids=IDS[:4]), finished=False)
    heard.begin_try()
    with pytest.raises(SeamError):
        heard.take(pb.GenerateResponse(started=pb.Started(resumed_text="six")))
    heard = heard_of(pb.Delta(text="five s", token_ids=IDS[:4]), finished=False)
    heard.begin_try()
    heard.take(pb.GenerateResponse(started=pb.Started(resumed_text="five")))
    with pytest.raises(SeamError):
        heard.take(pb.GenerateResponse(delta=pb.Delta(text="x", token_ids=IDS[4:])))


def test_a_broken_try_of_two_choices_must_have_been_right_too() -> None:
    truth = (ANSWER, ANSWER)
    for ids, verdict in ((IDS[:3], EXACT), ((5, 7, 9), MISMATCHED), ((5, 5), MISMATCHED)):
        heard = Heard(2)
        heard.begin_try()
        heard.take(pb.GenerateResponse(started=pb.Started()))
        heard.take(pb.GenerateResponse(delta=pb.Delta(text="fi", token_ids=ids, choice=1)))
        assert heard.begin_try() == []
        heard.take(pb.GenerateResponse(started=pb.Started()))
        usage = pb.Usage(prompt_tokens=3, completion_tokens=len(IDS))
        for choice in (0, 1):
            whole = pb.Delta(text="five seven", token_ids=IDS, choice=choice)
            heard.take(pb.GenerateResponse(delta=whole))
            ended = pb.Finished(reason=1, usage=usage, choice=choice)
            heard.take(pb.GenerateResponse(finished=ended))
        assert of_heard(truth, heard, USE._replace(asked=USE.asked)) == verdict
