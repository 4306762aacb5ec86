"""One answer against a manager that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from gateway import off_loop
from gateway.generation import Event, Finished, FinishReason, Generation, GenerationRequest, Started
from gateway.submission import Limits, Submission
from gateway.text_stream import Delta
from gateway.token_feed import EndCause, TokenFeed
from gateway.tokenizer import Tokenizer
from servicekit.errors import Cancelled, InvalidArgument, PagewireError, Reason, Unavailable
from servicekit.sampling import Sampling
from tests.gateway.tiny_tokenizers import load_tiny


class PlayedManager:
    """Accepts everything and answers with the ids it was made with, one at a time."""

    limits: Limits | None = Limits(max_seq_len=8_192, pool_tokens=8_192)

    def __init__(self, answer: Sequence[int], end: EndCause | PagewireError) -> None:
        self._answer, self._end = answer, end
        self.submissions: list[Submission] = []
        self.stopped: list[int] = []
        self.cancelled = 0

    def submit(self, submission: Submission) -> TokenFeed:
        self.submissions.append(submission)
        feed = TokenFeed(key=1)
        feed.put_accepted()
        for token_id in self._answer:
            feed.put_token(token_id)
        if isinstance(self._end, PagewireError):
            feed.put_failure(self._end)
        else:
            feed.put_end(self._end)
        return feed

    def stop(self, feed: TokenFeed, kept_tokens: int) -> None:
        self.stopped.append(kept_tokens)

    def cancel(self, feed: TokenFeed) -> None:
        self.cancelled += not (feed.over or self.stopped)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tiny(tmp_path_factory.mktemp("tokenizer"), "byte_level")


def asked(tokenizer: Tokenizer, **fields: object) -> GenerationRequest:
    return GenerationRequest("id", tokenizer.encode("Hi"), Sampling(temperature=0), **fields)


async def answer(
    manager: PlayedManager, tokenizer: Tokenizer, request: GenerationRequest
) -> tuple[str, list[int], Finished]:
    events: list[Event] = []
    async with aclosing(Generation(manager, tokenizer, request).events()) as stream:
        events += [event async for event in stream]
    started, *deltas, finished = events
    assert started == Started("id", len(request.prompt_ids))
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(finished, Finished)
    text = "".join(delta.text for delta in deltas)
    return text, [token_id for delta in deltas for token_id in delta.token_ids], finished


async def test_an_end_token_is_counted_and_named_and_not_shown(tokenizer: Tokenizer) -> None:
    (end_id,) = tokenizer.end_token_ids
    ids = [*tokenizer.encode("well"), end_id]
    text, token_ids, finished = await answer(
        PlayedManager(ids, EndCause.STOP_TOKEN), tokenizer, asked(tokenizer)
    )
    assert (text, token_ids) == ("well", ids)
    assert finished.reason is FinishReason.STOP
    assert finished.end_token_id == end_id
    assert finished.completion_tokens == len(ids)


async def test_end_tokens_are_submitted_as_stop_ids_unless_they_are_to_be_ignored(
    tokenizer: Tokenizer,
) -> None:
    (end_id,) = tokenizer.end_token_ids
    manager = PlayedManager([5], EndCause.MAX_TOKENS)
    await answer(manager, tokenizer, asked(tokenizer, stop_token_ids=[7]))
    await answer(manager, tokenizer, asked(tokenizer, stop_token_ids=[7], ignore_eos=True))
    assert [submission.stop_token_ids for submission in manager.submissions] == [
        sorted([7, end_id]),
        [7],
    ]


async def test_a_stop_string_is_a_stop_at_the_manager_with_the_tokens_kept(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("one two three")
    manager = PlayedManager(ids, EndCause.MAX_TOKENS)
    text, token_ids, finished = await answer(
        manager, tokenizer, asked(tokenizer, stop_strings=[" two"])
    )
    assert text == "one"
    assert tokenizer.decode(token_ids) == "one"
    assert finished.reason is FinishReason.STOP
    assert finished.stop_string == " two"
    assert manager.stopped == [finished.completion_tokens] == [len(token_ids)]


@pytest.mark.parametrize(
    ("include_stop", "text"), [(False, "well"), (True, "well<|end|>")], ids=["left out", "included"]
)
async def test_the_text_of_a_stop_token_is_part_of_the_answer_when_asked_for(
    include_stop: bool, text: str, tokenizer: Tokenizer
) -> None:
    """Special or not; so is an end token of the model's own that is named."""
    named = [tokenizer.backend.token_to_id("<|end|>"), *tokenizer.end_token_ids]
    for stop_token_id, shown in zip(named, (text, text.replace("<|end|>", "</s>")), strict=True):
        manager = PlayedManager([*tokenizer.encode("well"), stop_token_id], EndCause.STOP_TOKEN)
        request = asked(tokenizer, stop_token_ids=named, include_stop=include_stop)
        answered, token_ids, finished = await answer(manager, tokenizer, request)
        assert (answered, token_ids[-1]) == (shown, stop_token_id)
        assert finished.completion_tokens == len(token_ids)


async def test_an_end_token_that_nobody_named_has_no_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("well"), *tokenizer.end_token_ids]
    request = asked(tokenizer, stop_token_ids=[5], include_stop=True)
    text, _, _ = await answer(PlayedManager(ids, EndCause.STOP_TOKEN), tokenizer, request)
    assert text == "well"


async def test_a_stop_string_is_part_of_the_answer_when_asked_for(tokenizer: Tokenizer) -> None:
    manager = PlayedManager(tokenizer.encode("one two three"), EndCause.MAX_TOKENS)
    request = asked(tokenizer, stop_strings=[" two"], include_stop=True)
    text, token_ids, finished = await answer(manager, tokenizer, request)
    assert text == tokenizer.decode(token_ids) == "one two"
    assert finished.stop_string == " two"
    assert manager.stopped == [finished.completion_tokens]


async def test_a_stop_string_does_not_end_an_answer_before_min_tokens(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("one one one")
    least = len(tokenizer.encode("one on"))
    manager = PlayedManager(ids, EndCause.MAX_TOKENS)
    text, _, finished = await answer(
        manager, tokenizer, asked(tokenizer, stop_strings=["one"], min_tokens=least)
    )
    assert text == "one one "
    assert finished.completion_tokens >= least
    assert manager.submissions[0].min_tokens == least


async def test_the_manager_hears_of_a_stop_before_the_reader_takes_the_text(
    tokenizer: Tokenizer,
) -> None:
    manager = PlayedManager(tokenizer.encode("one two three"), EndCause.MAX_TOKENS)
    request = asked(tokenizer, stop_strings=[" two"])
    async with aclosing(Generation(manager, tokenizer, request).events()) as stream:
        await take_one(stream)
        assert isinstance(await anext(stream), Delta)
        assert len(manager.stopped) == 1


async def test_a_full_pool_is_a_length_with_its_detail(tokenizer: Tokenizer) -> None:
    manager = PlayedManager(tokenizer.encode("so"), EndCause.CACHE_FULL)
    text, _, finished = await answer(manager, tokenizer, asked(tokenizer))
    assert (text, finished.reason, finished.detail) == ("so", FinishReason.LENGTH, "cache_full")


async def test_a_failure_in_mid_answer_is_raised_after_the_tokens_before_it(
    tokenizer: Tokenizer,
) -> None:
    lost = Unavailable(Reason.SESSION_LOST, "cachesvc was lost")
    manager = PlayedManager(tokenizer.encode("half"), lost)
    texts: list[str] = []

    async def read() -> None:
        async for event in Generation(manager, tokenizer, asked(tokenizer)).events():
            if isinstance(event, Delta):
                texts.append(event.text)  # noqa: PERF401 # kept when the stream raises

    with pytest.raises(Unavailable, match="cachesvc was lost"):
        await read()
    assert "".join(texts) == "half"


class NeverEnds(PlayedManager):
    """Answers with one token, and no end."""

    def submit(self, submission: Submission) -> TokenFeed:
        self.submissions.append(submission)
        feed = TokenFeed(key=1)
        feed.put_accepted()
        feed.put_token(5)
        return feed


async def test_whoever_leaves_early_cancels_the_request(tokenizer: Tokenizer) -> None:
    manager = NeverEnds([], EndCause.MAX_TOKENS)
    async with aclosing(Generation(manager, tokenizer, asked(tokenizer)).events()) as stream:
        await take_one(stream)
    assert manager.cancelled == 1


async def test_a_cancel_from_outside_reaches_the_manager_at_once_and_the_reader_after_the_tokens(
    tokenizer: Tokenizer,
) -> None:
    manager = NeverEnds([], EndCause.MAX_TOKENS)
    generation = Generation(manager, tokenizer, asked(tokenizer))
    why = Cancelled(Reason.CANCELLED, "nobody wants it")
    async with aclosing(generation.events()) as stream:
        await take_one(stream)
        assert generation.cancel(why)
        assert manager.cancelled == 1
        assert not generation.cancel(why), "it has ended"
        assert isinstance(await anext(stream), Delta)
        with pytest.raises(Cancelled, match="nobody wants it"):
            await anext(stream)
    assert manager.cancelled == 1


async def test_a_request_that_is_cancelled_while_it_resumes_is_never_submitted(
    tokenizer: Tokenizer,
) -> None:
    """Cancel said that it was unknown and freed its name, and the answer was made all the same; so
    it was with one whose max_request_s was over meanwhile.
    """
    manager = NeverEnds([], EndCause.MAX_TOKENS)
    long = [5] * (off_loop.LONG_IDS + 1)  # a thread has them
    generation = Generation(manager, tokenizer, asked(tokenizer, resume_token_ids=long))
    async with aclosing(generation.events()) as stream:
        first = asyncio.create_task(take_one(stream))
        await asyncio.sleep(0)
        assert generation.cancel(Cancelled(Reason.CANCELLED, "nobody wants it"))
        assert generation.cancel(Cancelled(Reason.CANCELLED, "too late to say why"))
        with pytest.raises(Cancelled, match="nobody wants it"):
            await first
    assert (manager.submissions, manager.cancelled) == ([], 0)


@pytest.mark.parametrize(
    ("limits", "resume_len", "words"),
    [
        (Limits(8, 100), 9, "resume_token_ids has 9 entries, and max_seq_len is 8"),
        (None, 262_145, "resume_token_ids has 262145 entries; it must have 0 to 262144"),
    ],
    ids=["a runner", "none yet"],
)
def test_more_resumed_ids_than_an_answer_can_have_are_refused_before_any_is_detokenized(
    limits: Limits | None, resume_len: int, words: str, tokenizer: Tokenizer
) -> None:
    """A million of them were detokenized for 7.7 s, though an answer has max_seq_len at most."""
    manager = PlayedManager([], EndCause.MAX_TOKENS)
    manager.limits = limits
    with pytest.raises(InvalidArgument, match=words) as refused:
        Generation(manager, tokenizer, asked(tokenizer, resume_token_ids=[5] * resume_len))
    assert refused.value.metadata == {"field": "resume_token_ids"}
    if limits is not None:
        fits = asked(tokenizer, resume_token_ids=[5] * limits.max_seq_len)
        assert Generation(manager, tokenizer, fits).feed is None


@pytest.mark.parametrize("fields", [{}, {"stop_strings": ["we"]}])
async def test_a_request_that_has_ended_cannot_be_cancelled(
    fields: dict, tokenizer: Tokenizer
) -> None:
    """Though its reader has not taken the end of the answer yet."""
    manager = PlayedManager(tokenizer.encode("well"), EndCause.MAX_TOKENS)
    generation = Generation(manager, tokenizer, asked(tokenizer, **fields))
    async with aclosing(generation.events()) as stream:
        await take_one(stream)
        assert not generation.cancel(Cancelled(Reason.CANCELLED, "nobody wants it"))
        rest = [event async for event in stream]
    assert isinstance(rest[-1], Finished)
    assert manager.cancelled == 0


@pytest.mark.parametrize("resume_len", [0, 1, 3])
async def test_a_resumed_answer_tells_what_is_new_and_counts_all(
    resume_len: int, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("one two three")
    manager = PlayedManager(ids[resume_len:], EndCause.MAX_TOKENS)
    request = asked(tokenizer, resume_token_ids=ids[:resume_len])
    started, *deltas, finished = [
        event async for event in Generation(manager, tokenizer, request).events()
    ]
    assert manager.submissions[0].resume_token_ids == ids[:resume_len]
    assert started.resumed_text == tokenizer.decode(ids[:resume_len])
    assert started.resumed_text + "".join(delta.text for delta in deltas) == "one two three"
    assert [i for delta in deltas for i in delta.token_ids] == ids[resume_len:]
    assert (finished.completion_tokens, finished.resumed_tokens) == (len(ids), resume_len)


async def test_an_answer_that_was_complete_when_resumed_says_what_ended_it(
    tokenizer: Tokenizer,
) -> None:
    ids = [*tokenizer.encode("well"), *tokenizer.end_token_ids]
    manager = PlayedManager([], EndCause.STOP_TOKEN)
    events = Generation(manager, tokenizer, asked(tokenizer, resume_token_ids=ids)).events()
    _, finished = [event async for event in events]
    assert (finished.end_token_id, finished.completion_tokens) == (ids[-1], len(ids))


async def test_a_stop_string_in_resumed_text_is_a_stop_at_the_manager(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two")
    manager = NeverEnds([], EndCause.MAX_TOKENS)
    request = asked(tokenizer, resume_token_ids=ids, stop_strings=["two"])
    _, finished = [event async for event in Generation(manager, tokenizer, request).events()]
    assert (finished.stop_string, manager.cancelled) == ("two", 0)
    assert manager.stopped == [finished.completion_tokens]


async def take_one(stream: AsyncIterator[Event]) -> None:
    await anext(stream)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stop_strings": ["a"] * 65}, "stop.strings"),
        ({"stop_token_ids": [1] * 65}, "stop.token_ids"),
        ({"stop_strings": [""]}, "stop.strings"),
        ({"stop_token_ids": [-1]}, "stop.token_ids"),
        ({"stop_token_ids": [2**31 - 1]}, "stop.token_ids"),
        ({"resume_token_ids": [-1]}, "resume_token_ids"),
        ({"resume_token_ids": [5], "num_choices": 2}, "resume_token_ids"),
    ],
)
def test_what_cannot_stop_is_refused_before_anything_is_submitted(
    fields: dict, field: str, tokenizer: Tokenizer
) -> None:
    manager = PlayedManager([], EndCause.MAX_TOKENS)
    with pytest.raises(InvalidArgument, match=field) as caught:
        Generation(manager, tokenizer, asked(tokenizer, **fields))
    assert caught.value.metadata["field"] == field
    assert not manager.submissions


async def test_case_7_5_ready_ids_are_submitted_unchanged(tokenizer: Tokenizer) -> None:
    """Case 7.5: no BOS is added to ids that come ready, nor one taken away."""
    manager = PlayedManager([5], EndCause.MAX_TOKENS)
    prompts = [[5, 6], [tokenizer.bos_token_id, 5], [tokenizer.bos_token_id] * 2]
    for ids in prompts:
        await answer(manager, tokenizer, GenerationRequest("id", ids, Sampling(temperature=0)))
    assert [submission.prompt_ids for submission in manager.submissions] == prompts
