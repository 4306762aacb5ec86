"""Sends odd requests, and judges how each of them ended."""

from __future__ import annotations

import http.client
import json
import random

from tests.fuzz.http_figures import HttpFigures
from tests.fuzz.odd_requests import GOOD, KINDS, LEFT, Raw

TIMEOUT_S = 60.0


def send_raw(address: str, seed: int, count: int, figures: HttpFigures) -> None:
    """Inputs 0 to `count` - 1, one after the other, each a function of the seed and its number."""
    for number in range(count):
        rng = random.Random(f"raw {seed} {number}")
        kind, path = rng.choice(list(KINDS)), rng.choice(list(GOOD))
        raw = KINDS[kind](rng, path, json.dumps(GOOD[path], ensure_ascii=False).encode())
        code, why = _sent(address, raw, leaves=kind == LEFT)
        figures.note(path, kind, code)
        if why is not None:
            shown = raw._replace(body=raw.body[:300], path=raw.path[:100])
            figures.findings.append(f"{why}: {code} | input {number}, {kind}: {shown}")


def _sent(address: str, raw: Raw, *, leaves: bool) -> tuple[int | str, str | None]:
    """The status, and what is wrong with the answer, if anything."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.putrequest(raw.method, raw.path, skip_accept_encoding=True)
        for name, value in {"content-type": "application/json", **raw.headers}.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("content-length", str(len(raw.body)))
        connection.endheaders(raw.body)
        if leaves:
            return LEFT, None
        response = connection.getresponse()
        return response.status, _fault(raw, response, response.read())
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, f"no answer: {error}"
    finally:
        connection.close()


def _fault(raw: Raw, response: http.client.HTTPResponse, body: bytes) -> str | None:
    if response.status >= 500:
        return "no such code"
    if response.status >= 400 and raw.method != "HEAD":
        try:
            error = json.loads(body)["error"]
        except (ValueError, TypeError, KeyError):
            return f"a refusal in another shape: {body[:200]!r}"
        if set(error) != {"message", "type", "param", "code"}:
            return f"a refusal in another shape: {error}"
    return None
