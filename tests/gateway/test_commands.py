"""`pagewire chat` and `pagewire generate` as processes, between pipes and a server of this test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc

from gateway.cli import main
from servicekit.errors import InvalidArgument, Reason
from tests.cachesvc.rpc import served, socket_address

INT32, INT64 = (f"from {-(2**bits)} to {2**bits - 1}" for bits in (31, 63))
CHAT = ("chat",)
GENERATE = ("generate", "--chat", "Hello")
TEXT = "word " * 1000


class Wordy(inference_pb2_grpc.InferenceServiceServicer):
    """Answers at length."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def Chat(  # noqa: N802 # the RPC's name
        self, request: pb.ChatRequest, context: Any
    ) -> AsyncIterator[pb.ChatResponse]:
        if request.stop.HasField("max_tokens"):
            raise InvalidArgument(Reason.INVALID_FIELD, "max_tokens must be at least 1")
        self.messages.append(request.messages[-1].content)
        for token_id in range(100):
            yield pb.ChatResponse(delta=pb.Delta(text=TEXT, token_ids=[token_id]))
        yield pb.ChatResponse(finished=pb.Finished(reason=pb.FINISH_REASON_STOP))


class Ended(NamedTuple):
    exit_code: int
    out: bytes
    notes: str


async def pagewire(*arguments: str, stdin: bytes = b"", out_fd: int | None = None) -> Ended:
    """`out_fd`: where answers go; None: into the result."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE if out_fd is None else out_fd,
        stderr=asyncio.subprocess.PIPE,
    )
    out, notes = await process.communicate(stdin)
    assert process.returncode is not None
    return Ended(process.returncode, out or b"", notes.decode())


async def asked(
    *arguments: str, service: Wordy | None = None, stdin: bytes = b"", out_fd: int | None = None
) -> Ended:
    add = inference_pb2_grpc.add_InferenceServiceServicer_to_server
    async with served(add, service or Wordy()) as address:
        return await pagewire(*arguments, "--address", address, stdin=stdin, out_fd=out_fd)


async def test_a_chat_from_a_pipe_fails_when_an_answer_did() -> None:
    """It told of INVALID_FIELD and exited with 0, so that no script could tell."""
    ended = await asked(*CHAT, "--max-tokens", "0", stdin=b"hello\n")
    assert (ended.exit_code, ended.out) == (1, b"")
    assert ended.notes == "\nINVALID_FIELD: max_tokens must be at least 1\n"


@pytest.mark.parametrize("command", [CHAT, GENERATE], ids=["chat", "generate"])
@pytest.mark.parametrize(
    ("flag", "value", "span"),
    [
        ("--seed", "99999999999999999999", INT64),
        ("--seed", "-9223372036854775809", INT64),
        ("--max-tokens", "99999999999", INT32),
        ("--max-tokens", "9" * 5000, INT32),
        ("--max-tokens", "many", INT32),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused_in_a_sentence(
    command: tuple[str, ...],
    flag: str,
    value: str,
    span: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protobuf's ValueError came as a traceback, of the chat in the middle of a conversation."""
    with pytest.raises(SystemExit) as caught:
        main([*command, f"{flag}={value}"])
    assert caught.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        f"pagewire {command[0]}: error: argument {flag}: it must be a whole number {span}"
    )


@pytest.mark.parametrize(
    "arguments", [("chat", "--system", "\udcff"), ("generate", "\udcff")], ids=["chat", "generate"]
)
def test_an_argument_that_is_no_utf_8_is_refused_in_a_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a UnicodeEncodeError's traceback."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert capsys.readouterr().err.endswith(": it must be UTF-8\n")


async def test_bytes_that_are_no_utf_8_are_asked_with_what_stands_for_them() -> None:
    """They were a UnicodeEncodeError's traceback."""
    service = Wordy()
    ended = await asked(*CHAT, service=service, stdin=b"\xff\xfe hello\n")
    assert (ended.exit_code, ended.out.count(b"word")) == (0, 100_000)
    assert service.messages == ["\N{REPLACEMENT CHARACTER}" * 2 + " hello"]


@pytest.mark.parametrize("command", [CHAT, GENERATE], ids=["chat", "generate"])
async def test_a_reader_that_left_ends_the_command_in_silence(command: tuple[str, ...]) -> None:
    """`pagewire chat | head -c 1` ended in a BrokenPipeError's traceback, and in a second one when
    Python wrote out the rest at its end.
    """
    reader_fd, writer_fd = os.pipe()
    os.close(reader_fd)
    try:
        ended = await asked(*command, stdin=b"hello\n", out_fd=writer_fd)
    finally:
        os.close(writer_fd)
    assert ended == Ended(141, b"", "")


async def test_a_server_that_is_not_there_is_named_and_not_called_a_lost_session() -> None:
    """It was "SESSION_LOST: failed to connect"."""
    with socket_address() as address:
        ended = await pagewire(*GENERATE, "--address", address)
    assert (ended.exit_code, ended.out) == (1, b"")
    assert ended.notes.startswith(f"pagewire generate: the server at {address} is not reached: ")


async def test_a_chat_from_a_pipe_with_a_server_that_is_not_there_ends() -> None:
    """It tried again without end, as it does for who can press Ctrl-C."""
    with socket_address() as address:
        ended = await pagewire(*CHAT, "--address", address, stdin=b"hello\nanyone?\n")
    assert (ended.exit_code, ended.out) == (1, b"")
    assert ended.notes.count(f"\nthe server at {address} is not reached: ") == 2
    assert ended.notes.count("trying again") == 1
