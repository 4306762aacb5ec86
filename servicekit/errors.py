"""Every failure a caller can meet, in one table for all services.

No gRPC in here: `status.py` translates.

    PagewireError
    ├── InvalidArgument      the request can never work as sent
    ├── Unauthenticated      nobody knows who asks
    ├── NotFound             a named thing does not exist
    ├── AlreadyExists        a live thing has that name
    ├── FailedPrecondition   the system is set up so that this cannot work
    ├── ResourceExhausted    a bound is reached
    ├── Unavailable          try again later
    ├── DeadlineExceeded     the caller's time was over
    ├── Cancelled            somebody said that nobody wants it
    ├── Unimplemented        a protocol of others has it, and we do not
    └── Internal             our own fault
    SetupError               a process cannot start: printed as one sentence, exit code 2
    FatalError               a process cannot go on: printed as one sentence, exit code 1
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """`google.rpc.ErrorInfo.reason` of a failure, with domain "pagewire". Clients branch on it,
    never on the text.
    """

    EMPTY_PROMPT = "EMPTY_PROMPT"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    CONTEXT_TOO_LONG = "CONTEXT_TOO_LONG"
    PROMPT_EXCEEDS_POOL = "PROMPT_EXCEEDS_POOL"
    INVALID_FIELD = "INVALID_FIELD"
    TOKEN_OUT_OF_VOCAB = "TOKEN_OUT_OF_VOCAB"  # noqa: S105 # not a secret
    CHAT_TEMPLATE = "CHAT_TEMPLATE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    ROW_NOT_FOUND = "ROW_NOT_FOUND"
    REQUEST_NOT_FOUND = "REQUEST_NOT_FOUND"
    PAGE_OUT_OF_RANGE = "PAGE_OUT_OF_RANGE"
    MISSING_API_KEY = "MISSING_API_KEY"
    INVALID_API_KEY = "INVALID_API_KEY"
    DUPLICATE_REQUEST_ID = "DUPLICATE_REQUEST_ID"
    STREAM_ALREADY_LIVE = "STREAM_ALREADY_LIVE"
    PROTOCOL_VERSION = "PROTOCOL_VERSION"
    FINGERPRINT_MISMATCH = "FINGERPRINT_MISMATCH"
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    CHAIN_NOT_ATTACHED = "CHAIN_NOT_ATTACHED"
    DRAINING = "DRAINING"
    QUEUE_FULL = "QUEUE_FULL"
    TOO_MANY_LIVE_REQUESTS = "TOO_MANY_LIVE_REQUESTS"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    READER_STALLED = "READER_STALLED"
    NOT_SERVED = "NOT_SERVED"
    SESSION_LOST = "SESSION_LOST"
    PLAN_REFUSED = "PLAN_REFUSED"
    RUNNER_DIED_TWICE = "RUNNER_DIED_TWICE"
    INTERNAL = "INTERNAL"


class PagewireError(Exception):
    """A failure with a machine-readable reason and one sentence that says what to change.

    `retry_after_s`: the same may work after so long; None: nobody knows, or a retry will not help.
    """

    code_name = "UNKNOWN"  # canonical gRPC code, by name

    def __init__(
        self, reason: Reason, message: str, *, retry_after_s: float | None = None, **metadata: str
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.metadata = metadata


class InvalidArgument(PagewireError):
    code_name = "INVALID_ARGUMENT"


class Unauthenticated(PagewireError):
    code_name = "UNAUTHENTICATED"


class NotFound(PagewireError):
    code_name = "NOT_FOUND"


class AlreadyExists(PagewireError):
    code_name = "ALREADY_EXISTS"


class FailedPrecondition(PagewireError):
    code_name = "FAILED_PRECONDITION"


class ResourceExhausted(PagewireError):
    code_name = "RESOURCE_EXHAUSTED"


class Unavailable(PagewireError):
    code_name = "UNAVAILABLE"


class DeadlineExceeded(PagewireError):
    code_name = "DEADLINE_EXCEEDED"


class Cancelled(PagewireError):
    code_name = "CANCELLED"


class Unimplemented(PagewireError):
    code_name = "UNIMPLEMENTED"


class Internal(PagewireError):
    code_name = "INTERNAL"


class SetupError(Exception):
    """The process cannot start as configured; the text is one sentence that says what to change."""


class FatalError(Exception):
    """The process cannot go on; the text is one sentence that says why."""


def error_named(
    code_name: str,
    reason: Reason,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    retry_after_s: float | None = None,
) -> PagewireError:
    """The exception of the tree that carries `code_name`, for a failure that crossed a process
    border.
    """
    named: dict[str, type[PagewireError]] = {
        kind.code_name: kind for kind in PagewireError.__subclasses__()
    }
    error = named.get(code_name, Internal)(reason, message, retry_after_s=retry_after_s)
    error.metadata = dict(metadata or {})
    return error
