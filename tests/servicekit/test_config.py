"""Settings from the command line, and how a wrong one is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from servicekit.config import read_settings, setting
from servicekit.errors import SetupError
from servicekit.process import require_at_least


@dataclass(frozen=True)
class Settings:
    listen: str = setting("address")
    num_pages: int = setting("pages", 8)
    kv_tokens: int | None = setting("tokens", None)
    grace_s: float = setting("seconds", 5.0)
    verbose: bool = setting("say more", False)

    def __post_init__(self) -> None:
        require_at_least("num_pages", self.num_pages, 1)


def read(*argv: str) -> Settings:
    return read_settings(Settings, argv, prog="pagesvc", description="Pages.")


def refusal_of(*argv: str) -> str:
    with pytest.raises(SetupError) as caught:
        read(*argv)
    return str(caught.value)


def test_a_setting_that_is_not_given_has_its_default() -> None:
    assert read("--listen", "unix:a") == Settings("unix:a", 8, None, 5.0)


def test_a_switch_is_given_alone() -> None:
    assert not read("--listen", "a").verbose
    assert read("--verbose", "--listen", "a").verbose
    assert "verbose" in refusal_of("--listen", "a", "--verbose=yes")


def test_every_setting_can_be_given_in_either_form() -> None:
    given = read("--listen=unix:a", "--num-pages", "3", "--kv-tokens=7", "--grace-s", "0.5")
    assert given == Settings("unix:a", 3, 7, 0.5)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--num-page", "--num-pages"),
        ("--kv_tokens", "--kv-tokens"),
        ("--numpages=3", "--num-pages"),
    ],
)
def test_a_misspelt_setting_is_refused_by_name_with_what_was_meant(name: str, meant: str) -> None:
    assert refusal_of("--listen", "unix:a", name) == (
        f"unknown setting {name}: did you mean {meant}?"
    )


def test_a_misspelt_setting_that_must_be_given_is_refused_by_the_name_it_was_given() -> None:
    """The text named the setting that was missing, and not the one that was misspelt."""
    assert refusal_of("--lisen", "unix:a") == "unknown setting --lisen: did you mean --listen?"


def test_an_unknown_setting_like_no_other_is_refused_by_name() -> None:
    assert refusal_of("--listen", "unix:a", "--qqq", "1") == (
        "unknown setting --qqq: pagesvc --help lists the settings"
    )


def test_an_abbreviation_is_no_setting() -> None:
    assert "unknown setting --num" in refusal_of("--listen", "unix:a", "--num", "3")


def test_a_stray_word_is_refused() -> None:
    assert "unknown setting stray" in refusal_of("--listen", "unix:a", "stray")


def test_a_missing_setting_is_named() -> None:
    assert "--listen" in refusal_of()


def test_a_setting_without_its_value_is_named() -> None:
    assert "--num-pages" in refusal_of("--listen", "unix:a", "--num-pages")


def test_a_value_that_does_not_parse_is_named() -> None:
    text = refusal_of("--listen", "unix:a", "--num-pages", "many")
    assert "--num-pages" in text
    assert "many" in text


def test_a_value_out_of_range_is_named_with_its_bound() -> None:
    assert refusal_of("--listen", "unix:a", "--num-pages", "-1") == (
        "--num-pages is -1; it must be at least 1"
    )


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help")
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name in ("--listen", "--num-pages", "--kv-tokens", "--grace-s"):
        assert name in shown
    assert "pages [8]" in shown
