"""The requests whose answers are under way, by their callers and the names that those know."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from gateway.caller import caller
from servicekit.errors import AlreadyExists, Cancelled, InvalidArgument, PagewireError, Reason
from servicekit.quoting import quoted

MAX_REQUEST_ID_CHARS = 256


End: TypeAlias = Callable[[PagewireError], bool]


class LiveRequest:
    """One of them."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._end: End | None = None  # None: its prompt is not tokenized yet
        self._ended_by: PagewireError | None = None

    def ends_by(self, end: End) -> None:
        """From now on `end` ends it with what it is given, and tells whether it had not ended yet.

        Errors: what ended it before.
        """
        if self._ended_by is not None:
            raise self._ended_by
        self._end = end

    def end(self, why: PagewireError) -> bool:
        """Whether there was still something to end."""
        self._ended_by = why
        return self._end is None or self._end(why)

    def cancel(self) -> bool:
        """Whether there was still something to cancel."""
        return self.end(
            Cancelled(
                Reason.CANCELLED,
                f"the request was cancelled: Cancel named {quoted(self.request_id)}",
            )
        )


class CancelledIds(NamedTuple):
    """What became of the ids that a Cancel named; each once, in their order."""

    cancelled: list[str]
    unknown: list[str]


class LiveRequests:
    """Owns the names that are taken, those of each caller apart. A name is free again when its
    answer ended, or at once when it is cancelled.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], LiveRequest] = {}  # by caller and request_id

    @contextmanager
    def claimed(self, request_id: str) -> Iterator[LiveRequest]:
        """Takes the name for as long as the context lasts; makes one up when it is empty.

        Errors: InvalidArgument for one that is too long, AlreadyExists for one that is taken.
        """
        live = LiveRequest(self._checked(request_id) or secrets.token_hex(8))
        name = (caller(), live.request_id)
        self._live[name] = live
        try:
            yield live
        finally:
            if self._live.get(name) is live:  # else a successor may have the name
                del self._live[name]

    def cancel(self, request_ids: Iterable[str]) -> CancelledIds:
        """Ends those of the caller that are live."""
        ids = CancelledIds([], [])
        for request_id in dict.fromkeys(request_ids):
            live = self._live.pop((caller(), request_id), None)
            was_live = live is not None and live.cancel()
            (ids.cancelled if was_live else ids.unknown).append(request_id)
        return ids

    def end_all(self, why: PagewireError) -> None:
        """Ends those of all callers with `why`."""
        for live in list(self._live.values()):
            live.end(why)

    def _checked(self, request_id: str) -> str:
        if len(request_id) > MAX_REQUEST_ID_CHARS:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"request_id has {len(request_id)} characters; at most {MAX_REQUEST_ID_CHARS} "
                "are allowed",
                field="request_id",
            )
        if (caller(), request_id) in self._live:
            raise AlreadyExists(
                Reason.DUPLICATE_REQUEST_ID,
                f"request_id {quoted(request_id)} is live: use another, or wait for that answer to "
                "end",
                field="request_id",
            )
        return request_id
