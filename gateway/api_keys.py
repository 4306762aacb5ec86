"""API keys: a file of them, and whether a call has one."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from gateway.caller import is_called_by
from servicekit.errors import Reason, SetupError, Unauthenticated

MIN_KEY_CHARS = 16


def read_api_keys(path: str) -> dict[str, str]:
    """Keys by their names, in the order of the file: one a line, `NAME:KEY` or `KEY`, which is
    called "line N"; lines that are empty or begin with # are left out.

    Errors: SetupError, which names lines and never shows one.
    """
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise SetupError(f"the keys in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SetupError(f"{path} holds what is not ASCII; a key is printable ASCII") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, key = line.rpartition(":")
        name = name.strip() or f"line {number}"
        check_api_key(key := key.strip(), f"line {number} of {path}")
        if name in keys or key in keys.values():
            raise SetupError(f"line {number} of {path} has a name or a key that came before")
        keys[name] = key
    if not keys:
        raise SetupError(f"{path} holds no key: write one a line, NAME:KEY or KEY")
    return keys


def check_api_key(key: str, where: str) -> None:
    """Errors: SetupError, which names `where` and does not show the key."""
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or {*" :"} & {*key}:
        raise SetupError(
            f"the key in {where} must be printable ASCII, without spaces and colons, and have at "
            f"least {MIN_KEY_CHARS} characters"
        )


class ApiKeys:
    """Who may call. Holds digests, so that no key can be shown and all compare in equal time."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """`keys`: by the names that callers go by in logs and limits."""
        self._digests = {name: _digest(key) for name, key in keys.items()}

    def check(self, authorization: str | None) -> None:
        """Takes the call as its key's; `authorization` is the header, "Bearer KEY".

        Errors: Unauthenticated, after a time that no key has a part in.
        """
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise Unauthenticated(
                Reason.MISSING_API_KEY,
                "the call has no API key: send the header authorization: Bearer KEY",
            )
        given_digest = _digest(given.strip())
        matching = [
            name
            for name, digest in self._digests.items()
            if hmac.compare_digest(digest, given_digest)
        ]
        if not matching:
            raise Unauthenticated(
                Reason.INVALID_API_KEY,
                "the API key is none of this server's: ask its operator for one",
            )
        is_called_by(matching[0])


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="replace")).digest()
