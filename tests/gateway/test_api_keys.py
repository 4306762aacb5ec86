"""API keys: what a file of them may hold, and who has one."""

from __future__ import annotations

import hmac
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from gateway.api_keys import ApiKeys, read_api_keys
from gateway.caller import caller
from servicekit.errors import Reason, SetupError, Unauthenticated

ALICE, BOB = "alice-0123456789", "bob-0123456789abc"
KEYS = ApiKeys({"alice": ALICE, "bob": BOB})


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_key_goes_by_its_name_or_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, f"# ours\nalice:{ALICE}\n\n  {BOB}  \n")
    assert read_api_keys(path) == {"alice": ALICE, "line 4": BOB}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no key"),
        ("# none\n", "holds no key"),
        ("alice:too-short\n", "line 1 .* at least 16 characters"),
        (f"alice:{ALICE} {BOB}\n", "line 1 .* without spaces"),
        (f"{ALICE}\nbob:{ALICE}\n", "line 2 .* came before"),
        (f"x:{ALICE}\nx:{BOB}\n", "line 2 .* came before"),
        ("alice:schlüssel-0123456789\n", "ASCII"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_without_showing_a_key(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(SetupError, match=why) as refused:
        read_api_keys(written(tmp_path, text))
    assert not any(key in str(refused.value) for key in (ALICE, BOB, "too-short", "schl"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere cannot be read: No such file"):
        read_api_keys(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("header", [f"Bearer {BOB}", f"bearer {BOB}", f"BEARER   {BOB} "])
def test_whoever_has_a_key_is_its_caller(header: str) -> None:
    def called_by() -> str:
        KEYS.check(header)
        return caller()

    assert copy_context().run(called_by) == "bob"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, Reason.MISSING_API_KEY),
        ("", Reason.MISSING_API_KEY),
        ("Bearer", Reason.MISSING_API_KEY),
        ("Bearer  ", Reason.MISSING_API_KEY),
        (f"Basic {ALICE}", Reason.MISSING_API_KEY),
        (ALICE, Reason.MISSING_API_KEY),
        (f"Bearer {ALICE}x", Reason.INVALID_API_KEY),
        (f"Bearer {ALICE[:-1]}", Reason.INVALID_API_KEY),
        (f"Bearer {ALICE} {BOB}", Reason.INVALID_API_KEY),
        (f"Bearer alice:{ALICE}", Reason.INVALID_API_KEY),
        ("Bearer \udcff", Reason.INVALID_API_KEY),
    ],
)
def test_whoever_has_none_is_refused_and_nothing_is_told_of_the_keys(
    header: str | None, reason: Reason
) -> None:
    with pytest.raises(Unauthenticated) as refused:
        KEYS.check(header)
    assert refused.value.reason is reason
    assert not any(name in refused.value.message for name in ("alice", "bob"))
    assert refused.value.metadata == {}


@pytest.mark.parametrize("given", [ALICE, BOB, "nobody-0123456789", "x"])
def test_every_key_is_compared_in_constant_time_whichever_was_given(given: str) -> None:
    """A profiler sees each call of hmac.compare_digest, and no comparison ends the search."""
    compared: list[tuple[bytes, bytes]] = []

    def see(frame, event: str, called) -> None:
        if event == "c_call" and called is hmac.compare_digest:
            compared.append((frame.f_locals["digest"], frame.f_locals["given_digest"]))

    sys.setprofile(see)
    try:
        copy_context().run(KEYS.check, f"Bearer {given}")
    except Unauthenticated:
        pass
    finally:
        sys.setprofile(None)
    assert len(compared) == 2
    assert {len(digest) for pair in compared for digest in pair} == {32}


def test_no_key_can_be_shown() -> None:
    assert not any(key in repr(vars(KEYS)) for key in (ALICE, BOB))
