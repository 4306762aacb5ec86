"""The W3C trace context of a caller: https://www.w3.org/TR/trace-context/, version 00."""

from __future__ import annotations

import re
from collections.abc import Iterable

HEADER = "traceparent"
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's traceparent. Empty when there is none, when there are two, or when it is not of
    the form that version 00 has: then the recommendation is to go on as if there was none.
    """
    given = [value for name, value in metadata if name == HEADER]
    if len(given) != 1 or not isinstance(given[0], str) or _FORM.fullmatch(given[0]) is None:
        return ""
    return given[0]
