"""The command line of `pagewire generate`: whom it asks, and what is printed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from gateway.answer_figures import Answered, AnswerFigures
from gateway.connection import Connection, add_connection_flags, connection_of
from gateway.flag_types import int32, int64, utf8
from gateway.inference_client import Question, ask, page_counts
from gateway.model_name import resolve
from gateway.serve_config import NO_ADMIN, NO_HTTP, ServeConfig
from gateway.supervisor import Supervisor


def run(arguments: list[str]) -> None:
    """Ask once and print the answer. Errors: SetupError, FatalError, PagewireError."""
    parser = argparse.ArgumentParser(prog="pagewire generate")
    parser.add_argument("prompt", type=utf8)
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message to a chat model"
    )
    add_connection_flags(parser)
    parser.add_argument(
        "--serve", metavar="MODEL", help="start a server of this model, ask it, stop it"
    )
    parser.add_argument("--max-tokens", type=int32, default=None)
    parser.add_argument("--temperature", type=float, default=0.0, help="[0, the most likely token]")
    parser.add_argument("--seed", type=int64, default=None)
    options = parser.parse_args(arguments)
    question = Question(
        options.prompt, options.chat, options.max_tokens, options.temperature, options.seed
    )
    if options.serve is None:
        asyncio.run(_print_answer(connection_of(options), question, None))
    else:
        config = ServeConfig(
            listen=options.address, http=NO_HTTP, admin=NO_ADMIN, log_level="warning"
        )
        asyncio.run(_ask_own_server(resolve(options.serve), config, question))


async def _ask_own_server(model_dir: Path, config: ServeConfig, question: Question) -> None:
    began = time.monotonic()
    supervisor = Supervisor(model_dir, config)
    try:
        await supervisor.start()
        await supervisor.until_ready()
        sys.stderr.write(f"three services ready after {time.monotonic() - began:.1f} s\n")
        await _print_answer(Connection(config.listen), question, supervisor.cache_address)
    finally:
        await supervisor.stop()


async def _print_answer(
    connection: Connection, question: Question, cache_address: str | None
) -> None:
    """Stream the answer to standard output, then one line of figures to standard error."""
    figures = AnswerFigures()
    used = Answered(0, 0)
    async for piece in ask(connection, question):
        if isinstance(piece, Answered):
            used = piece
        elif piece:
            figures.note_text()
            sys.stdout.write(piece)
            sys.stdout.flush()
    line = figures.of(used)
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stderr.write(line)
    if cache_address is not None:
        num_pages, cached_pages, max_used_pages = await page_counts(cache_address)
        sys.stderr.write(f"; pages: {max_used_pages} of {num_pages} used, {cached_pages} cached")
    sys.stderr.write("\n")
