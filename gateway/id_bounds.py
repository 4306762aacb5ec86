"""How many ids one call may bring."""

from __future__ import annotations

from collections.abc import Sequence

from servicekit.errors import InvalidArgument, Reason
from servicekit.token_ids import check_token_ids

MAX_DETOKENIZED_IDS = 262_144
MAX_CANCELLED_IDS = 1_024


def check_count(name: str, count: int, most: int) -> None:
    """Errors: InvalidArgument, naming the field `name`, for none or more than `most`."""
    if not 1 <= count <= most:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{name} has {count} entries; it must have 1 to {most}",
            field=name,
        )


def check_detokenized(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Errors: those of `check_count` and of `check_token_ids`."""
    check_count(name, len(token_ids), MAX_DETOKENIZED_IDS)
    check_token_ids(name, token_ids, vocab_size)
