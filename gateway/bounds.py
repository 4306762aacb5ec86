"""How much one call may bring."""

from __future__ import annotations

from collections.abc import Sequence

from servicekit.errors import InvalidArgument, Reason
from servicekit.token_ids import check_token_ids

MAX_DETOKENIZED_IDS = 262_144
MAX_CANCELLED_IDS = 1_024
MAX_STOPS = 64
MAX_PROMPTS = 1_024  # and as many choices of all prompts of a call together
MAX_MESSAGES = 4_096  # of a conversation; a template renders so many in less than 0.1 s
MAX_CHOICES = 128  # of one prompt; OpenAI's


def check_count(name: str, count: int, most: int, *, least: int = 1) -> None:
    """Errors: InvalidArgument, naming the field `name`, for less than `least` or more than
    `most`.
    """
    if not least <= count <= most:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{name} has {count} entries; it must have {least} to {most}",
            field=name,
        )


def check_num_messages(count: int) -> None:
    """Errors: InvalidArgument, naming the field `messages`, for too many; of none, the template's
    owner has its own word.
    """
    if count:
        check_count("messages", count, MAX_MESSAGES)


def check_num_choices(num_choices: int) -> None:
    """Errors: InvalidArgument, naming the field `n`."""
    if not 1 <= num_choices <= MAX_CHOICES:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"n is {num_choices}; it must be from 1 to {MAX_CHOICES}",
            field="n",
        )


def check_detokenized(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Errors: those of `check_count` and of `check_token_ids`."""
    check_count(name, len(token_ids), MAX_DETOKENIZED_IDS)
    check_token_ids(name, token_ids, vocab_size)
