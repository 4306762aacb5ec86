"""What a request would get if it were alone in the world, by which every answer is judged."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc.request import FinishCause, Submission
from servicekit.plan import RunnerDescription
from tests.cachesvc.fake_runner import continuation


@dataclass(frozen=True)
class Truth:
    """A request's whole sequence, and the stretch of it that is its answer."""

    prompt_len: int
    token_ids: list[int]  # up to max_seq_len: rows may compute past the answer's end
    answer: list[int]  # what of it is new, where some was known before
    cause: FinishCause


def truth_of(submission: Submission, runner: RunnerDescription) -> Truth:
    prompt = submission.prompt_ids.tolist()
    stop_token_ids = submission.stop_token_ids.tolist()
    longest = runner.max_seq_len - len(prompt)
    seed, choice = submission.sampling.seed, submission.choice
    tokens = continuation(prompt, seed, longest, runner.vocab_size, choice)
    limit = longest if submission.max_tokens is None else submission.max_tokens
    for count, token_id in enumerate(tokens, start=1):
        if token_id in stop_token_ids:
            cause = FinishCause.STOP_TOKEN
        elif count == limit:
            cause = FinishCause.MAX_TOKENS
        elif len(prompt) + count > runner.pool_tokens:
            cause = FinishCause.CACHE_FULL
        else:
            continue
        answer = tokens[len(submission.resume_token_ids) : count]
        return Truth(len(prompt), prompt + tokens, answer, cause)
    raise AssertionError("the submission has no room for an answer")
