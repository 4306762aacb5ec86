"""A process's settings: one frozen dataclass, read once from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Sequence
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from servicekit.errors import SetupError

T = TypeVar("T")


def setting(help_text: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field with the text that `--help` prints; without a default it must be given."""
    return dataclasses.field(default=default, metadata={"help": help_text})


def read_settings(kind: type[T], argv: Sequence[str], *, prog: str, description: str) -> T:
    """`argv` as an instance of the dataclass `kind`: field `num_pages` is `--num-pages N`, and a
    bool, false unless given, is an option alone.

    Errors: SetupError names an unknown or misspelt setting, a missing one, or a value that does
    not parse; `kind.__post_init__` raises it for a value out of range.
    """
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type] # T is a dataclass
        help_text = field.metadata["help"]
        if hints[field.name] is bool:
            parser.add_argument(_option(field.name), action="store_true", help=help_text)
            continue
        required = field.default is dataclasses.MISSING
        parser.add_argument(
            _option(field.name),
            type=_parser_of(hints[field.name]),
            default=field.default,
            help=f"{help_text} [{'required' if required else field.default}]",
            metavar=field.name.upper(),
        )
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:  # before what is missing: a required setting may be misspelt
        raise SetupError(_unknown_setting(unknown[0], parser))
    for name, value in vars(known).items():
        if value is dataclasses.MISSING:
            parser.error(f"{_option(name)} must be given")
    return kind(**vars(known))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise SetupError(f"{message}; {self.prog} --help lists the settings")


def _parser_of(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):  # X | None: absent is None, given is X
        return next(arg for arg in get_args(hint) if arg is not type(None))
    return hint


def _unknown_setting(name: str, parser: argparse.ArgumentParser) -> str:
    known = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 # no public list
    close = difflib.get_close_matches(name.partition("=")[0], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"{parser.prog} --help lists the settings"
    return f"unknown setting {name}: {hint}"
