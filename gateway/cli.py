"""The command `pagewire`: fetch a model, serve it, ask it, talk to it, replay what it did."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from servicekit.errors import FatalError, PagewireError, SetupError

USAGE = """usage: pagewire COMMAND

  fetch NAME              bring a model into the user's cache (smollm2-135m-instruct)
  serve MODEL             serve a model directory or hub name; --help lists the settings
  generate PROMPT         ask a server, or with --serve MODEL one of its own; --help tells more
  chat                    talk to a server; --help tells more
  replay FILE             execute a recorded plan stream again and compare; --help tells more
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point.

    Exits 0; 1 when an answer or a service failed, or a replay differs; 2 when it cannot be carried
    out; 130 on Ctrl-C; 141 when nobody reads what it writes.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {
        "fetch": _fetch,
        "serve": _serve,
        "generate": _generate,
        "chat": _chat,
        "replay": _replay,
    }
    if not arguments or arguments[0] not in commands:
        asked = arguments[:1] in (["--help"], ["-h"])
        (sys.stdout if asked else sys.stderr).write(USAGE)
        sys.exit(0 if asked else 2)
    try:
        commands[arguments[0]](arguments[1:])
        sys.stdout.flush()
    except SetupError as error:
        sys.stderr.write(f"pagewire {arguments[0]}: {error}\n")
        sys.exit(2)
    except FatalError as error:
        sys.stderr.write(f"pagewire {arguments[0]}: {error}\n")
        sys.exit(1)
    except PagewireError as error:
        sys.stderr.write(f"pagewire {arguments[0]}: {error.reason}: {error.message}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _end_unread()


def _end_unread() -> NoReturn:
    """End as SIGPIPE would; what is still to be written goes nowhere, and raises nothing."""
    nowhere_fd = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere_fd, stream.fileno())
    sys.exit(128 + signal.SIGPIPE)


def _fetch(arguments: list[str]) -> None:
    from gateway.fetch import fetch

    parser = argparse.ArgumentParser(prog="pagewire fetch")
    parser.add_argument("name", help="smollm2-135m-instruct")
    fetch(parser.parse_args(arguments).name)


def _serve(arguments: list[str]) -> None:
    from gateway.serve_command import run

    run(arguments)


def _generate(arguments: list[str]) -> None:
    from gateway.generate_command import run

    run(arguments)


def _chat(arguments: list[str]) -> None:
    from gateway.chat_command import run

    if code := run(arguments):
        sys.exit(code)


def _replay(arguments: list[str]) -> None:
    from gateway.replay_command import run

    if code := run(arguments):
        sys.exit(code)


if __name__ == "__main__":
    main()
