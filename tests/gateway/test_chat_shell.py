"""The shell of `pagewire chat` between a user and a server that the test plays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from io import StringIO

from gateway.answer_figures import Answered
from gateway.chat_shell import ChatEvent, ChatShell, Lost, Turn
from servicekit.errors import FatalError, InvalidArgument, Reason


class Typed:
    """Lines that a user typed; an exception is raised in its place."""

    def __init__(self, *lines: str | BaseException) -> None:
        self._lines = iter(lines)

    async def read(self) -> str:
        line = next(self._lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line


class PlayedServer:
    """Answers each question with the next of the scripts; an action in one is called."""

    def __init__(self, *scripts: Sequence[ChatEvent | Exception | Callable[[], None]]) -> None:
        self._scripts = iter(scripts)
        self.asked: list[list[Turn]] = []
        self.seeds: list[int] = []
        self.left_early = 0

    async def answer(self, turns: Sequence[Turn], seed: int) -> AsyncGenerator[ChatEvent, None]:
        self.asked.append(list(turns))
        self.seeds.append(seed)
        try:
            for event in next(self._scripts):
                if isinstance(event, Exception):
                    raise event
                if callable(event):
                    event()
                    await asyncio.Event().wait()
                yield event
        except asyncio.CancelledError:
            self.left_early += 1
            raise


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def chat(
    server: PlayedServer, *lines: str | BaseException, fails: bool = False, **settings: object
) -> tuple[str, str]:
    """What the shell wrote: answers, and notes. `fails`: an answer does."""
    out, notes = StringIO(), StringIO()
    ticks = iter(range(1000))
    shell = ChatShell(Typed(*lines), server, out, notes, clock=lambda: next(ticks), **settings)
    all_answered = await shell.run()
    assert all_answered is not fails
    return out.getvalue(), notes.getvalue()


async def test_answers_are_written_with_their_figures_and_become_part_of_the_conversation() -> None:
    server = PlayedServer(["Pa", "ris.", Answered(9, 3)], ["Berlin.", Answered(20, 2)])
    out, notes = await chat(server, "France?", "  ", "And Germany?")
    assert out == "Paris.\nBerlin.\n"
    assert notes.splitlines() == [
        "9 tokens in, 3 out, first after 1000 ms, then 2.0 tokens/s",
        "20 tokens in, 2 out, first after 1000 ms, then 1.0 tokens/s",
    ]
    assert server.asked[1] == [
        Turn("user", "France?"),
        Turn("assistant", "Paris."),
        Turn("user", "And Germany?"),
    ]


async def test_each_answer_has_a_seed_of_its_own_unless_one_is_given() -> None:
    server = PlayedServer(*[[Answered(1, 1)]] * 4)
    await chat(server, "a", "b")
    await chat(server, "a", "b", seed=7)
    assert server.seeds[0] != server.seeds[1]
    assert server.seeds[2:] == [7, 7]


async def test_reset_forgets_all_but_what_opens_a_conversation() -> None:
    server = PlayedServer(["one", Answered(1, 1)], ["two", Answered(1, 1)])
    _, notes = await chat(server, "first", "/reset", "second", system="Be brief.")
    assert server.asked[1] == [Turn("system", "Be brief."), Turn("user", "second")]
    assert "a new conversation" in notes


async def test_help_is_shown_and_quit_leaves() -> None:
    server = PlayedServer()
    _, notes = await chat(server, "/help", "/quit", "never asked")
    for command in ("/reset", "/help", "/quit", "Ctrl-C"):
        assert command in notes
    assert not server.asked


async def test_an_unknown_command_is_named_and_a_message_may_begin_with_a_slash() -> None:
    server = PlayedServer(["A file.", Answered(1, 1)])
    _, notes = await chat(server, "/rest", "/etc/hosts is what?")
    assert "/rest is no command; /help lists them" in notes
    assert server.asked == [[Turn("user", "/etc/hosts is what?")]]


async def test_ctrl_c_stops_the_answer_and_not_the_shell_and_keeps_what_came() -> None:
    server = PlayedServer(["One, two", press_ctrl_c], ["On.", Answered(1, 1)])
    out, notes = await chat(server, "Count.", "Go on.")
    assert server.left_early == 1
    assert (out, "stopped" in notes) == ("One, twoOn.\n", True)
    assert server.asked[1][1] == Turn("assistant", "One, two")


async def test_ctrl_c_before_the_first_text_takes_the_question_back() -> None:
    server = PlayedServer([press_ctrl_c], ["Yes.", Answered(1, 1)])
    await chat(server, "Wrong question", "Right one?")
    assert server.asked[1] == [Turn("user", "Right one?")]


async def test_ctrl_c_at_the_prompt_gives_the_line_up() -> None:
    server = PlayedServer(["Yes.", Answered(1, 1)])
    await chat(server, KeyboardInterrupt(), "Still there?")
    assert server.asked == [[Turn("user", "Still there?")]]


async def test_a_failure_is_told_in_its_words_and_its_question_taken_back() -> None:
    too_long = InvalidArgument(Reason.PROMPT_TOO_LONG, "the prompt has 300 tokens")
    server = PlayedServer([too_long], ["Yes.", Answered(1, 1)])
    _, notes = await chat(server, "long", "short", fails=True)
    told = "PROMPT_TOO_LONG: the prompt has 300 tokens; /reset forgets the conversation"
    assert told in notes
    assert server.asked[1] == [Turn("user", "short")]


async def test_a_server_that_is_not_reached_is_told_without_a_reason_of_its_own() -> None:
    """It was called SESSION_LOST, which a server says of what is behind it."""
    server = PlayedServer([FatalError("the server at x:1 is not reached: refused")])
    _, notes = await chat(server, "Anyone?", fails=True)
    assert notes == "\nthe server at x:1 is not reached: refused\n"


async def test_a_server_that_is_away_is_told_of_once_until_it_answers() -> None:
    gone = Lost("connection refused")
    server = PlayedServer(["a", gone, gone, gone, "b", gone, "c", Answered(1, 3, is_cut=True)])
    out, notes = await chat(server, "letters")
    assert out == "abc\n"
    assert notes.count("connection refused: trying again, Ctrl-C gives up") == 2
    assert notes.endswith("cut at its limit\n")
