"""The command line of `pagewire chat`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from io import TextIOWrapper
from pathlib import Path

from gateway.chat_client import ChatClient, ChatParams
from gateway.chat_input import PipedLines, TerminalLines, default_history
from gateway.chat_shell import ChatShell, Lines
from gateway.connection import add_connection_flags, connection_of
from gateway.flag_types import int32, int64, utf8


def run(arguments: list[str]) -> int:
    """Chat until the user leaves. Returns the exit code: 1 when an answer to a pipe failed, else 0.
    Errors: SetupError.
    """
    parser = argparse.ArgumentParser(
        prog="pagewire chat",
        description="Talk to a running server, on a terminal or with a message a line from a pipe. "
        "A restart of the server interrupts an answer and loses nothing of it.",
    )
    add_connection_flags(parser)
    parser.add_argument("--model", type=utf8, default="", help="[whatever is served]")
    parser.add_argument(
        "--system", type=utf8, default="", metavar="TEXT", help="what opens a conversation"
    )
    parser.add_argument("--max-tokens", type=int32, default=None, help="of an answer [what fits]")
    parser.add_argument("--temperature", type=float, default=None, help="[the server's]")
    parser.add_argument("--seed", type=int64, default=None, help="[another one for each answer]")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help=f"of what was typed [{default_history()}]"
    )
    options = parser.parse_args(arguments)
    connection = connection_of(options)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        sys.stderr.write(f"chat with {options.address}; /help lists commands, Ctrl-D leaves\n")
        lines: Lines = TerminalLines(options.history or default_history())
    else:
        lines = PipedLines(TextIOWrapper(sys.stdin.buffer, "utf-8", errors="replace"))
    params = ChatParams(options.model, options.max_tokens, options.temperature)
    client = ChatClient(connection, params, is_patient=is_terminal)
    shell = ChatShell(
        lines, client, sys.stdout, sys.stderr, system=options.system, seed=options.seed
    )
    all_answered = asyncio.run(shell.run())
    return 0 if all_answered or is_terminal else 1
