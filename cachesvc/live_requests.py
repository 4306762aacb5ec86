"""Requests that have not ended, by session and key, and how the others ended."""

from __future__ import annotations

from cachesvc.request import Req, Submission
from cachesvc.story import Stories, Story
from cachesvc.totals import EndTotals


class LiveRequests:
    """Owns the set of live requests, and all stories."""

    def __init__(self, aging_s: float) -> None:
        self.stories = Stories()
        self.totals = EndTotals()
        self._aging_s = aging_s
        self._reqs: dict[tuple[int, int], Req] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._reqs)

    def begin(
        self, session_id: int, submission: Submission, limit_len: int, plan_id: int, now_s: float
    ) -> Req:
        """A request that the plan `plan_id` could admit. Its key is new in its session."""
        assert (session_id, submission.key) not in self._reqs, "keys of a session grow"
        remaining_s, first_key = submission.remaining_s, submission.first_choice_key
        came_s = now_s - (submission.age_s or 0.0)
        first_choice = None if first_key is None else self._reqs.get((session_id, first_key))
        req = Req(
            submission=submission,
            session_id=session_id,
            arrival=self._arrivals,
            rank=(came_s - submission.priority * self._aging_s, self._arrivals),
            limit_len=limit_len,
            story=Story(
                arrival=self._arrivals,
                session_id=session_id,
                key=submission.key,
                request_id=submission.request_id,
                priority=submission.priority,
                prompt_len=len(submission.prompt_ids),
                traceparent=submission.traceparent,
                submitted=self.stories.next_moment(plan_id),
                let_in_step=None if first_choice is not None else 0,
            ),
            deadline_s=None if remaining_s is None else now_s + remaining_s,
            first_choice=first_choice,
            output_ids=submission.resume_token_ids,
        )
        self._arrivals += 1
        self._reqs[session_id, submission.key] = req
        self.stories.begin(req.story)
        self.totals.resubmitted += submission.is_again
        return req

    def find(self, session_id: int, key: int) -> Req | None:
        return self._reqs.get((session_id, key))

    def of_story(self, story: Story) -> Req | None:
        """The request that a story is about, while it lives."""
        req = self._reqs.get((story.session_id, story.key))
        return req if req is not None and req.story is story else None

    def of_session(self, session_id: int) -> list[Req]:
        return [req for (owner, _), req in self._reqs.items() if owner == session_id]

    def end(self, req: Req, how: str, plan_id: int) -> None:
        """It is over before the plan `plan_id`: a FinishCause by name, STOPPED or CANCELLED."""
        del self._reqs[req.session_id, req.key]
        req.story.end, req.story.ended = how, self.stories.next_moment(plan_id)
        req.story.sampled_len = len(req.output_ids)
        self.stories.end(req.story)
