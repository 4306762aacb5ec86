"""Messages from a terminal, whose keys the test presses, and from a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from gateway.chat_input import PipedLines, TerminalLines, default_history
from servicekit.errors import SetupError

ENTER, NEW_LINE, UP, CTRL_C, CTRL_D, CTRL_R = "\r", "\x1b\r", "\x1b[A", "\x03", "\x04", "\x12"


@contextmanager
def terminal(history: Path, keys: str) -> Iterator[TerminalLines]:
    with create_pipe_input() as source:
        source.send_text(keys)
        yield TerminalLines(history, source=source, target=DummyOutput())


async def test_enter_sends_and_alt_enter_begins_a_new_line(tmp_path: Path) -> None:
    with terminal(tmp_path / "h", f"one{NEW_LINE}two{ENTER}three{ENTER}") as lines:
        assert [await lines.read(), await lines.read()] == ["one\ntwo", "three"]


async def test_pasted_lines_stay_together(tmp_path: Path) -> None:
    with terminal(tmp_path / "h", f"\x1b[200~one\rtwo\x1b[201~{ENTER}") as lines:
        assert await lines.read() == "one\ntwo"


async def test_what_was_typed_comes_back_in_the_next_session_and_nobody_else_reads_it(
    tmp_path: Path,
) -> None:
    history = tmp_path / "state" / "h"
    with terminal(history, f"remember me{ENTER}") as lines:
        await lines.read()
    with terminal(history, f"{UP}{ENTER}") as lines:
        assert await lines.read() == "remember me"
    with terminal(history, f"{CTRL_R}mem{ENTER}{ENTER}") as lines:
        assert await lines.read() == "remember me"
    assert history.stat().st_mode & 0o777 == 0o600


async def test_ctrl_c_gives_the_line_up_and_ctrl_d_ends(tmp_path: Path) -> None:
    with terminal(tmp_path / "h", f"no{CTRL_C}") as lines, pytest.raises(KeyboardInterrupt):
        await lines.read()
    with terminal(tmp_path / "h", CTRL_D) as lines, pytest.raises(EOFError):
        await lines.read()


def test_a_history_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="give --history FILE"):
        TerminalLines(tmp_path / "file" / "h")


async def test_a_pipe_gives_a_message_a_line_and_a_backslash_goes_on() -> None:
    lines = PipedLines(StringIO("one\ntwo\\\nthree\nfour\\\n"))
    assert [await lines.read() for _ in range(3)] == ["one", "two\nthree", "four"]
    with pytest.raises(EOFError):
        await lines.read()


async def test_ctrl_c_while_a_pipe_is_read_is_the_end_of_it() -> None:
    class Interrupted(StringIO):
        def readline(self, *_: object) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            return "not read"

    with pytest.raises(EOFError):
        await PipedLines(Interrupted()).read()


def test_the_history_lies_where_the_desktop_keeps_state(tmp_path: Path) -> None:
    assert default_history({"XDG_STATE_HOME": "/s"}) == Path("/s/pagewire/chat_history")
    assert default_history({}) == Path.home() / ".local/state/pagewire/chat_history"
