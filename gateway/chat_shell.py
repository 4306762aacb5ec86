"""A conversation in a terminal: reads messages and commands, writes answers as they come."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol, TextIO, TypeAlias

from gateway.answer_figures import Answered, AnswerFigures
from servicekit.errors import FatalError, PagewireError, Reason

HELP = """\
  /reset   forget the conversation
  /help    this
  /quit    leave; so does Ctrl-D
Enter sends, Alt-Enter (or Esc, then Enter) begins a new line, pasted lines stay together.
Ctrl-C stops an answer, and what came of it stays in the conversation. The arrow keys bring
back what was typed, in earlier sessions too; Ctrl-R searches it.
"""
TOO_LONG = (Reason.PROMPT_TOO_LONG, Reason.CONTEXT_TOO_LONG, Reason.PROMPT_EXCEEDS_POOL)


class Turn(NamedTuple):
    role: str  # "system", "user" or "assistant"
    content: str


class Lost(NamedTuple):
    """The server is away; it is tried again."""

    why: str


ChatEvent: TypeAlias = str | Lost | Answered


class Asker(Protocol):
    """`ChatClient` asks a server."""

    def answer(self, turns: Sequence[Turn], seed: int) -> AsyncGenerator[ChatEvent, None]:
        """See there."""


class Lines(Protocol):
    """`chat_input` has those of a terminal and of a pipe."""

    async def read(self) -> str:
        """The next message or command. Errors: EOFError after the last one; KeyboardInterrupt when
        what was typed is given up.
        """


class ChatShell:
    """Owns the conversation. Answers go to `out`, all else to `notes`."""

    def __init__(
        self,
        lines: Lines,
        asker: Asker,
        out: TextIO,
        notes: TextIO,
        *,
        system: str = "",
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`system` opens each conversation unless empty; `seed` is drawn for each answer unless
        given.
        """
        self._lines, self._asker, self._out, self._notes = lines, asker, out, notes
        self._opening = [Turn("system", system)] if system else []
        self._turns = list(self._opening)
        self._seed = seed
        self._clock = clock
        self._all_answered = True  # but for what Ctrl-C stopped

    async def run(self) -> bool:
        """Until /quit or the end of input. Returns False when an answer failed."""
        while True:
            try:
                message = (await self._lines.read()).strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
            if message == "/quit":
                break
            if message.startswith("/") and len(message.split()) == 1:
                self._command(message)
            elif message:
                await self._ask(message)
        return self._all_answered

    def _command(self, command: str) -> None:
        if command == "/help":
            self._note(HELP)
        elif command == "/reset":
            self._turns = list(self._opening)
            self._note("a new conversation\n")
        else:
            self._note(f"{command} is no command; /help lists them\n")

    async def _ask(self, message: str) -> None:
        """One question and its answer. Ctrl-C stops the answer."""
        self._turns.append(Turn("user", message))
        pieces: list[str] = []
        answering = asyncio.create_task(self._answer(pieces))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, answering.cancel)
        try:
            await asyncio.wait([answering])
            self._note_end(answering)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            answering.cancel()
        if pieces:
            self._turns.append(Turn("assistant", "".join(pieces)))
        else:
            self._turns.pop()

    async def _answer(self, pieces: list[str]) -> None:
        """Write an answer, and put it into `pieces` as it comes."""
        figures = AnswerFigures(self._clock)
        is_lost = False
        seed = secrets.randbits(63) if self._seed is None else self._seed
        async with aclosing(self._asker.answer(self._turns, seed)) as events:
            async for event in events:
                if isinstance(event, Lost):
                    if not is_lost:
                        self._note(f"\n[{event.why}: trying again, Ctrl-C gives up]\n")
                    is_lost = True
                elif isinstance(event, Answered):
                    self._write("\n")
                    limit = "; cut at its limit" if event.is_cut else ""
                    self._note(f"{figures.of(event)}{limit}\n")
                else:
                    is_lost = False
                    figures.note_text()
                    pieces.append(event)
                    self._write(event)

    def _note_end(self, answering: asyncio.Task[None]) -> None:
        """Say how an answer ended that did not end by itself."""
        if answering.cancelled():
            self._note("\nstopped\n")
            return
        try:
            answering.result()
        except PagewireError as error:
            hint = "; /reset forgets the conversation" if error.reason in TOO_LONG else ""
            self._note_failure(f"{error.reason}: {error.message}{hint}")
        except FatalError as error:
            self._note_failure(str(error))

    def _note_failure(self, why: str) -> None:
        self._all_answered = False
        self._note(f"\n{why}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _note(self, text: str) -> None:
        self._notes.write(text)
        self._notes.flush()
