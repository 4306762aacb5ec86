"""What two services check of each other before they talk: the protocol, and the model."""

from __future__ import annotations

from servicekit.errors import FailedPrecondition, Reason
from servicekit.plan import PROTOCOL_VERSION


def check_protocol_version(field: str, given: int, speaker: str) -> None:
    """Errors: FailedPrecondition PROTOCOL_VERSION unless `given` is the version we speak."""
    if given != PROTOCOL_VERSION:
        raise FailedPrecondition(
            Reason.PROTOCOL_VERSION,
            f"{field} is {given}; this {speaker} speaks {PROTOCOL_VERSION}",
            field=field,
        )


def check_fingerprint(field: str, given: str, served: str, server: str) -> None:
    """Errors: FailedPrecondition FINGERPRINT_MISMATCH unless `given` is "" (any) or `served`."""
    if given not in ("", served):
        raise FailedPrecondition(
            Reason.FINGERPRINT_MISMATCH,
            f"{field} is {given}; {server} serves {served}",
            field=field,
        )
