"""The command line of `pagewire chat`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gateway.chat_client import ChatClient, ChatParams
from gateway.chat_input import PipedLines, TerminalLines, default_history
from gateway.chat_shell import ChatShell, Lines
from gateway.connection import add_connection_flags, connection_of


def run(arguments: list[str]) -> None:
    """Chat until the user leaves. Errors: SetupError."""
    parser = argparse.ArgumentParser(
        prog="pagewire chat",
        description="Talk to a running server, on a terminal or with a message a line from a pipe. "
        "A restart of the server interrupts an answer and loses nothing of it.",
    )
    add_connection_flags(parser)
    parser.add_argument("--model", default="", help="[whatever is served]")
    parser.add_argument("--system", default="", metavar="TEXT", help="what opens a conversation")
    parser.add_argument("--max-tokens", type=int, default=None, help="of an answer [what fits]")
    parser.add_argument("--temperature", type=float, default=None, help="[the server's]")
    parser.add_argument("--seed", type=int, default=None, help="[another one for each answer]")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help=f"of what was typed [{default_history()}]"
    )
    options = parser.parse_args(arguments)
    lines: Lines = PipedLines(sys.stdin)
    if sys.stdin.isatty():
        sys.stderr.write(f"chat with {options.address}; /help lists commands, Ctrl-D leaves\n")
        lines = TerminalLines(options.history or default_history())
    params = ChatParams(options.model, options.max_tokens, options.temperature)
    client = ChatClient(connection_of(options), params)
    shell = ChatShell(
        lines, client, sys.stdout, sys.stderr, system=options.system, seed=options.seed
    )
    asyncio.run(shell.run())
