"""A submission as the manager reads it."""

from __future__ import annotations

from pagewire.v1 import cache_pb2 as pb

from gateway.submission import Submission
from servicekit.sampling_codec import encode_sampling
from servicekit.status import duration_of


def encode_submit(key: int, submission: Submission) -> pb.SessionRequest:
    remaining_s, age_s = submission.remaining_s, submission.age_s
    first_choice = submission.first_choice
    return pb.SessionRequest(
        submit=pb.Submit(
            key=key,
            request_id=submission.request_id,
            prompt_ids=submission.prompt_ids,
            sampling=encode_sampling(submission.sampling),
            max_tokens=submission.max_tokens,
            min_tokens=submission.min_tokens,
            stop_token_ids=submission.stop_token_ids,
            remaining=None if remaining_s is None else duration_of(remaining_s),
            traceparent=submission.traceparent,
            priority=submission.priority,
            cache_salt=submission.cache_salt,
            choice=submission.choice,
            first_choice_key=None if first_choice is None else first_choice.key,
            resume_token_ids=submission.resume_token_ids,
            age=None if age_s is None else duration_of(age_s),
        )
    )
