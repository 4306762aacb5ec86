"""The requests whose answers are under way, with all that it takes to submit them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.submission import Submission
from gateway.token_feed import TokenFeed


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One of them. Times are seconds of a clock that does not go back."""

    submission: Submission
    feed: TokenFeed
    taken_s: float
    is_sent: bool = True  # to the manager of the session that is open now
    is_again: bool = False  # it was so as one that an earlier session had

    @property
    def held_ids(self) -> list[int]:
        """The answer so far, what its client had before included."""
        return [*self.submission.resume_token_ids, *self.feed.received_ids]

    def again(self, now_s: float, first_choice: TokenFeed | None) -> Submission:
        """What to ask of a manager that knows nothing of it."""
        age_s, remaining_s = now_s - self.taken_s, self.submission.remaining_s
        return self.submission._replace(
            resume_token_ids=self.held_ids,
            remaining_s=None if remaining_s is None else max(remaining_s - age_s, 0.0),
            first_choice=first_choice,
            age_s=age_s,
        )


class HeldRequests:
    """Owns the set, in the order in which they came, and their keys, which grow over sessions."""

    def __init__(self) -> None:
        self._held: dict[int, HeldRequest] = {}
        self._last_key = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def any_unsent(self) -> bool:
        return not all(request.is_sent for request in self._held.values())

    def begin(self, submission: Submission, now_s: float) -> TokenFeed:
        """One that the manager is about to be sent."""
        self._last_key += 1
        feed = TokenFeed(self._last_key)
        self._held[feed.key] = HeldRequest(submission, feed, now_s)
        return feed

    def feed_of(self, key: int) -> TokenFeed | None:
        request = self._held.get(key)
        return None if request is None else request.feed

    def end(self, key: int) -> HeldRequest | None:
        """Forget the request; None when it was forgotten before."""
        return self._held.pop(key, None)

    def lose_session(self) -> None:
        """No manager knows any of them."""
        for request in self._held.values():
            request.is_sent = False

    def put_off(self, key: int) -> bool:
        """The manager will not have one of those that it was sent again: the next one may. False,
        and nothing happens, for any other.
        """
        request = self._held.get(key)
        if request is None or not request.is_again:
            return False
        request.is_sent = False
        return True

    def send_again(self, now_s: float) -> Iterator[tuple[int, Submission]]:
        """Those that this session's manager has not been sent, in order, each with its key; they
        count as sent from now on. Of the choices of one prompt that live, all wait for the first.
        """
        leaders: dict[int, TokenFeed] = {}  # by key of choice 0, which may have ended
        for request in self._held.values():
            if request.is_sent:
                continue
            first = request.submission.first_choice or request.feed
            leader = leaders.setdefault(first.key, request.feed)
            request.is_sent = request.is_again = True
            yield request.feed.key, request.again(now_s, None if leader is request.feed else leader)

    def end_all_taken_by(self, time_s: float) -> list[HeldRequest]:
        """Forget those that were taken then or before."""
        ended = [request for request in self._held.values() if request.taken_s <= time_s]
        for request in ended:
            del self._held[request.feed.key]
        return ended
