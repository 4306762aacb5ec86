"""A request as the manager knows it: ids and limits, no text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from cachesvc.story import Story
from servicekit.errors import InvalidArgument, PagewireError, Reason
from servicekit.plan import Int32Array, RowOpen, RowRules, RunnerDescription
from servicekit.sampling import Sampling
from servicekit.token_ids import check_token_ids

MAX_STOP_TOKEN_IDS = 128
MAX_PRIORITY = 100
MAX_SALT_BYTES = 256
MAX_LABEL_CHARS = 256
MAX_TRACEPARENT_CHARS = 64
EMPTY = np.zeros(0, dtype=np.int32)


class ReqState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class FinishCause(Enum):
    """Names of cache.proto's FinishCause, without their prefix."""

    STOP_TOKEN = "STOP_TOKEN"  # noqa: S105 # not a secret
    MAX_TOKENS = "MAX_TOKENS"
    CACHE_FULL = "CACHE_FULL"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Submission:
    """What a gateway hands over. Unchecked: `check_submission` does."""

    key: int
    request_id: str
    prompt_ids: Int32Array
    sampling: Sampling
    max_tokens: int | None
    stop_token_ids: Int32Array
    choice: int = 0
    first_choice_key: int | None = None
    priority: int = 0
    cache_salt: str = ""
    remaining_s: float | None = None
    traceparent: str = ""
    min_tokens: int = 0  # before so many are sampled, no stop token is
    resume_token_ids: Int32Array = field(default_factory=lambda: EMPTY)  # sampled before
    age_s: float | None = None  # since its gateway took it, when an earlier session had it

    @property
    def is_again(self) -> bool:
        """A session that was lost had it before."""
        return self.age_s is not None


@dataclass(slots=True, eq=False)
class Req:
    """A request in the manager. `output_ids` is current while it waits; while it runs, its row
    holds the ids.

    `rank` orders requests, lowest first: a time of arrival, at the gateway where an earlier session
    had the request, that is earlier the higher the priority.
    So a request that waits gains on all that come later, whatever their priority.
    """

    submission: Submission
    session_id: int
    arrival: int  # names it: how many requests came before
    rank: tuple[float, int]
    limit_len: int  # prompt and answer together never pass it, in tokens
    story: Story
    deadline_s: float | None = None
    first_choice: Req | None = None  # not admitted before the prompt of that one is sent
    state: ReqState = ReqState.WAITING
    table_idx: int | None = None
    output_ids: Int32Array = field(default_factory=lambda: EMPTY)
    runner_deaths: int = 0  # with it in a plan, and no token since: see `suspects`

    @property
    def has_ended(self) -> bool:
        return self.state is ReqState.ENDED

    @property
    def key(self) -> int:
        return self.submission.key

    @property
    def prompt_ids(self) -> Int32Array:
        return self.submission.prompt_ids

    @property
    def stop_token_ids(self) -> Int32Array:
        return self.submission.stop_token_ids

    @property
    def known_len(self) -> int:
        """Tokens whose ids are known while it waits."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def known_ids(self) -> bytes:
        """Those ids, int32 in bytes."""
        return self.prompt_ids.tobytes() + self.output_ids.tobytes()

    def row_open(self, table_idx: int) -> RowOpen:
        """What the runner is told of it when it gets a row."""
        sampling = self.submission.sampling
        return RowOpen(
            table_idx=table_idx,
            prompt_len=len(self.prompt_ids),
            temperature=sampling.temperature,
            top_k=max(sampling.top_k, 0),
            top_p=sampling.top_p,
            seed=sampling.seed,
            choice=self.submission.choice,
            traceparent=self.submission.traceparent,
            rules=self._row_rules(),
        )

    def _row_rules(self) -> RowRules | None:
        """None where there is nothing to obey. History is what is known when it gets a row."""
        sampling, min_tokens = self.submission.sampling, self.submission.min_tokens
        rules = RowRules(
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            bias_ids=tuple(token_id for token_id, _ in sampling.logit_bias),
            biases=tuple(bias for _, bias in sampling.logit_bias),
            min_tokens=min_tokens,
            stop_token_ids=tuple(self.stop_token_ids.tolist()) if min_tokens else (),
            logprobs=sampling.logprobs,
        )
        if rules.has_penalty:
            history = np.concatenate((self.prompt_ids, self.output_ids))
            rules = replace(rules, history_ids=tuple(history.tolist()))
        return None if rules == RowRules() else rules


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request got its first row, with so many tokens of its prompt cached; for its session."""

    session_id: int
    key: int
    cached_len: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a request ended, for its session."""

    session_id: int
    key: int
    cause: FinishCause
    failure: PagewireError | None = None


def limit_len_of(submission: Submission, runner: RunnerDescription, usable_tokens: int) -> int:
    """The bound of prompt and answer together, in tokens, for a submission that can be served with
    pages for `usable_tokens`.

    Errors: InvalidArgument with the reason, the field at fault and the numbers, for one that never
    can.
    """
    _check_labels(submission)
    prompt_len = len(submission.prompt_ids)
    if prompt_len == 0:
        raise _invalid(
            Reason.EMPTY_PROMPT, "prompt", "the prompt is empty; it needs at least one token"
        )
    check_token_ids("prompt", submission.prompt_ids, runner.vocab_size)
    check_token_ids("stop.token_ids", submission.stop_token_ids, runner.vocab_size)
    check_token_ids("resume_token_ids", submission.resume_token_ids, runner.vocab_size)
    biased = np.array([token_id for token_id, _ in submission.sampling.logit_bias], dtype=np.int64)
    check_token_ids("sampling.logit_bias", biased, runner.vocab_size)
    if len(submission.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _invalid(
            Reason.INVALID_FIELD,
            "stop.token_ids",
            f"{len(submission.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are "
            "allowed",
        )
    if prompt_len >= runner.max_seq_len:
        raise _invalid(
            Reason.PROMPT_TOO_LONG,
            "prompt",
            f"the prompt has {prompt_len} tokens; with one to answer it must stay within "
            f"max_seq_len {runner.max_seq_len}",
        )
    if submission.max_tokens is not None and submission.max_tokens < 1:
        raise _invalid(
            Reason.INVALID_FIELD,
            "stop.max_tokens",
            f"stop.max_tokens is {submission.max_tokens}; it must be at least 1",
        )
    if not 0 <= submission.min_tokens <= (submission.max_tokens or runner.max_seq_len - prompt_len):
        raise _invalid(
            Reason.INVALID_FIELD,
            "stop.min_tokens",
            f"stop.min_tokens is {submission.min_tokens}; it must be from 0 to stop.max_tokens",
        )
    if (
        submission.max_tokens is not None
        and prompt_len + submission.max_tokens > runner.max_seq_len
    ):
        raise _invalid(
            Reason.CONTEXT_TOO_LONG,
            "stop.max_tokens",
            f"prompt {prompt_len} + stop.max_tokens {submission.max_tokens} tokens pass "
            f"max_seq_len {runner.max_seq_len}",
        )
    if prompt_len + 1 > usable_tokens:
        raise _invalid(
            Reason.PROMPT_EXCEEDS_POOL,
            "prompt",
            f"the prompt has {prompt_len} tokens and the page pool holds {usable_tokens}: "
            "send a shorter prompt, or serve with more pages",
        )
    return (
        runner.max_seq_len if submission.max_tokens is None else prompt_len + submission.max_tokens
    )


def _check_labels(submission: Submission) -> None:
    """What has nothing to do with tokens. Errors: InvalidArgument."""
    if not -MAX_PRIORITY <= submission.priority <= MAX_PRIORITY:
        raise _invalid(
            Reason.INVALID_FIELD,
            "priority",
            f"priority is {submission.priority}; it must be {-MAX_PRIORITY} to {MAX_PRIORITY}",
        )
    if len(submission.cache_salt.encode()) > MAX_SALT_BYTES:
        raise _invalid(
            Reason.INVALID_FIELD,
            "cache_salt",
            f"cache_salt has {len(submission.cache_salt.encode())} bytes; at most {MAX_SALT_BYTES} "
            "are allowed",
        )
    for name, text, most in (
        ("request_id", submission.request_id, MAX_LABEL_CHARS),
        ("traceparent", submission.traceparent, MAX_TRACEPARENT_CHARS),
    ):
        if len(text) > most:
            message = f"{name} has {len(text)} characters; at most {most} are allowed"
            raise _invalid(Reason.INVALID_FIELD, name, message)
    if submission.age_s is not None and submission.age_s < 0:
        raise _invalid(
            Reason.INVALID_FIELD, "age", f"age is {submission.age_s:g} s; it must not be negative"
        )
    if submission.choice < 0:
        raise _invalid(
            Reason.INVALID_FIELD, "choice", f"choice is {submission.choice}; they go from 0 up"
        )


def _invalid(reason: Reason, field_name: str, message: str) -> InvalidArgument:
    return InvalidArgument(reason, message, field=field_name)
