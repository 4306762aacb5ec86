"""HTTP requests that no document describes: bodies that are no JSON, odd headers, methods and
paths, clients that leave.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.fuzz.fuzzed_system import MAX_MESSAGE_BYTES
from tests.fuzz.spoilt import SPOILS
from tests.fuzz.values import NO_TEXTS, OBJECTS, some_text

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


def odd_object(rng: random.Random, path: str, good: bytes) -> Raw:
    """As the arguments of a call: JSON in the text of JSON."""
    function = {"name": "add", "arguments": rng.choice(OBJECTS)}
    call = {"id": "1", "type": "function", "function": function}
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
    return Raw("/tokenize", json.dumps({"messages": turns}).encode())


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


def _spoilt(spoil: Callable[[random.Random, bytes], bytes]) -> Kind:
    return lambda rng, path, good: Raw(path, spoil(rng, good))


KINDS: dict[str, Kind] = {
    "odd_json": odd_json,
    "odd_value": odd_value,
    "odd_object": odd_object,
    "no_text": no_text,
    "too_long": too_long,
    "odd_header": odd_header,
    "odd_path": odd_path,
    "odd_method": odd_method,
    LEFT: leaving,
    **{name: _spoilt(spoil) for name, spoil in SPOILS.items()},
}
