"""Where the messages of a chat come from: a terminal with history and line editing, or a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from servicekit.errors import SetupError


def default_history(env: Mapping[str, str] = os.environ) -> Path:
    """pagewire/chat_history in $XDG_STATE_HOME or ~/.local/state."""
    named = env.get("XDG_STATE_HOME")
    base = Path(named) if named else Path.home() / ".local" / "state"
    return base / "pagewire" / "chat_history"


class TerminalLines:
    """Messages typed at a prompt, several lines each if wanted, remembered in a file that only its
    owner reads.
    """

    def __init__(
        self, history: Path, *, source: Input | None = None, target: Output | None = None
    ) -> None:
        """The terminal's own input and output unless given. Errors: SetupError when the history
        cannot be written.
        """
        try:
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
        except OSError as error:
            raise SetupError(
                f"the history {history} cannot be written ({error.strerror}): give --history FILE"
            ) from error
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
            history=FileHistory(history),
            input=source,
            output=target,
        )

    async def read(self) -> str:
        return await self._session.prompt_async()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))  # in a search it ends the search
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class PipedLines:
    """Messages out of a file, a line each; a line that ends in a backslash goes on in the next."""

    def __init__(self, source: TextIO) -> None:
        self._source = source

    async def read(self) -> str:
        """Holds the event loop up, on which nothing runs meanwhile. Ctrl-C is the end."""
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._joined_lines()
        except KeyboardInterrupt:
            raise EOFError from None
        finally:
            signal.signal(signal.SIGINT, former)

    def _joined_lines(self) -> str:
        lines: list[str] = []
        while line := self._source.readline():
            text = line.rstrip("\n")
            if not text.endswith("\\"):
                return "\n".join([*lines, text])
            lines.append(text[:-1])
        if lines:
            return "\n".join(lines)
        raise EOFError
