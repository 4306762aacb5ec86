"""What of the router's requests is served. All else is refused by its name, and never ignored."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from servicekit.errors import InvalidArgument, Reason

GENERATE_FIELDS = frozenset({"request_id", "tokenized", "text", "sampling_params", "stream"})
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "skip_special_tokens",  # of the text, which the router makes
        "spaces_between_special_tokens",  # likewise
        "ignore_eos",
        "n",
        "logprobs",
        "seed",
        "include_stop_str_in_output",  # likewise
        "logit_bias",
    }
)
MAX_COUNT = 2**31 - 1  # the manager's counts are signed
MOST = {"top_k": MAX_COUNT, "max_tokens": MAX_COUNT, "min_tokens": MAX_COUNT, "n": 1}


def check_fields(message: Any, served: Set[str], path: str = "") -> None:
    """Errors: InvalidArgument for a field that is given and not served."""
    for field, _ in message.ListFields():
        if field.name not in served:
            raise _refused(f"{path}{field.name}", "is not served: leave it out")


def check_generate(request: Any) -> None:
    """Of a GenerateRequest. Errors: those of `check_fields`, and InvalidArgument for a count that
    is too large.
    """
    check_fields(request, GENERATE_FIELDS)
    check_fields(request.sampling_params, SAMPLING_FIELDS, "sampling_params.")
    for name, most in MOST.items():
        count = getattr(request.sampling_params, name)
        if count > most:
            raise _refused(f"sampling_params.{name}", f"is {count}; it must be at most {most}")


def _refused(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(Reason.INVALID_FIELD, f"{field} {why}", field=field)
