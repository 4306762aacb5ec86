"""HTTP requests that no document describes: bodies that are no JSON, odd headers, methods and
paths, clients that leave.
"""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.fuzz.fuzzed_system import MAX_MESSAGE_BYTES
from tests.fuzz.http_figures import HttpFigures
from tests.fuzz.values import NO_TEXTS, some_bytes, some_text

TIMEOUT_S = 60.0
LEFT = "left"
GOOD = {
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello wörld"}],
        "max_tokens": 6,
        "logprobs": True,
        "logit_bias": {"5": 1.5},
    },
    "/v1/completions": {"model": "tiny", "prompt": ["Hello", "you"], "max_tokens": 6, "stop": "no"},
    "/tokenize": {"prompt": "Hello", "return_token_strs": True},
    "/detokenize": {"tokens": [40, 41, 42]},
}
ODD_JSON = (
    b"",
    b"null",
    b"[]",
    b"1e999",
    b"NaN",
    b"-Infinity",
    b'"\\ud800"',
    b"[" * 5_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b"9" * 5_000,
    b'\xef\xbb\xbf{"model":"tiny"}',
    '{"model":"tiny"}'.encode("utf-16"),
)
ODD_VALUES = (
    b"1e999",
    b"-1e999",
    b"NaN",
    b"9" * 400,
    b"1.0",
    b"-0",
    b'"\\ud800\\udc00\\udfff"',
    b'"\\u0000"',
    b"[[[[[[[[]]]]]]]]",
    b'{"type":"text"}',
    b"[null]",
    b"true",
    b'""',
)
ODD_HEADERS = (
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=utf-16"},
    {"content-type": "multipart/form-data; boundary="},
    {"content-type": "\xff/\xfe"},
    {"content-encoding": "gzip"},
    {"expect": "100-continue"},
    {"traceparent": "00-zz-\xe9"},
    {"authorization": "Bearer \xff"},
    {"accept": "image/png"},
    {"x": "y" * 60_000},
)
METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FUZZ")
PATHS = (
    "/v1/models/%00",
    "/v1/models/%ff%fe",
    "/v1/models/..%2f..%2fetc",
    "/v1/models/" + "x" * 20_000,
    "//",
    "/%",
    "/v1/chat/completions/",
    "/openapi.json?a=%zz",
    "*",
)


class Raw(NamedTuple):
    path: str
    body: bytes
    method: str = "POST"
    headers: dict[str, str] = {}  # noqa: RUF012 # never changed


Kind: TypeAlias = Callable[[random.Random, str, bytes], Raw]


def odd_json(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, rng.choice(ODD_JSON))


def odd_value(rng: random.Random, path: str, good: bytes) -> Raw:
    """Of a field: what stands last counts."""
    names = [*GOOD[path], "temperature", "top_k", "seed", "n", "stream", "max_completion_tokens"]
    name = json.dumps(rng.choice((*names, some_text(rng)))).encode()
    return Raw(path, b"%s, %s: %s}" % (good[:-1], name, rng.choice(ODD_VALUES)))


def garbage(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, some_bytes(rng))


def cut(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, good[: rng.randrange(len(good))])


def flipped(rng: random.Random, path: str, good: bytes) -> Raw:
    turned = bytearray(good)
    for _ in range(rng.randrange(1, 4)):
        turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
    return Raw(path, bytes(turned))


def no_text(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, good.replace(b"Hello", rng.choice(NO_TEXTS)))


def too_long(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, good + b" " * rng.choice((MAX_MESSAGE_BYTES, 20 * MAX_MESSAGE_BYTES)))


def odd_header(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, good, headers=rng.choice(ODD_HEADERS))


def odd_path(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(rng.choice(PATHS), b"", "GET")


def odd_method(rng: random.Random, path: str, good: bytes) -> Raw:
    return Raw(path, good, rng.choice(METHODS))


def leaving(rng: random.Random, path: str, good: bytes) -> Raw:
    """Long answers, in a stream or whole, of which nobody reads the end."""
    asked = json.loads(good) | {"stream": rng.random() < 0.5, "max_tokens": 150}
    return Raw(path, json.dumps(asked if "model" in asked else json.loads(good)).encode())


KINDS: dict[str, Kind] = {
    "odd_json": odd_json,
    "odd_value": odd_value,
    "garbage": garbage,
    "cut": cut,
    "flipped": flipped,
    "no_text": no_text,
    "too_long": too_long,
    "odd_header": odd_header,
    "odd_path": odd_path,
    "odd_method": odd_method,
    LEFT: leaving,
}


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
