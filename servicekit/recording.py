"""A recorded plan stream as a file: the format of `recording.proto`, written and read.

Each RecordedMessage comes after its length as a varint. A file whose writer was killed ends in a
whole record, or in a part of one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import structlog
from google.protobuf.message import DecodeError, Message
from pagewire.v1 import recording_pb2 as pb
from pagewire.v1 import runner_pb2

from servicekit.errors import SetupError
from servicekit.plan import Plan
from servicekit.plan_twin import recorded_plan

log = structlog.get_logger()

FORMAT_VERSION = 1
MAX_QUEUED_RECORDS = 65_536  # a disk that falls so far behind ends the recording, not the service
MAX_VARINT_BYTES = 10


class RecordingWriter:
    """Writes records on a thread of its own: whoever records waits for no disk.

    What was recorded is in the file within milliseconds, unless the disk is behind. A write that
    fails ends the recording, with a line in the log, and nothing else. Use as a context manager.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Takes over `file`, which is empty; `name` is for the log."""
        self._file = file
        self._name = name
        self._failure: str | None = None
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put(pb.RecordedMessage(header=pb.RecordingHeader(format_version=FORMAT_VERSION)))
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()
        log.info("recording", path=name)

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded any more; None while all is well."""
        return self._failure

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is left and close the file."""
        self._queue.put(None)
        self._thread.join()

    def attached(self, attached: runner_pb2.Attached) -> None:
        self._put(pb.RecordedMessage(attached=attached))

    def plan(self, plan: Plan) -> None:
        self._put(recorded_plan(plan))

    def result(self, result: runner_pb2.Result) -> None:
        self._put(pb.RecordedMessage(result=result))

    def refusal(self, refusal: runner_pb2.Refusal) -> None:
        self._put(pb.RecordedMessage(refusal=refusal))

    def failed(self, failed: runner_pb2.Failed) -> None:
        self._put(pb.RecordedMessage(failed=failed))

    def _put(self, record: Message) -> None:
        if self._failure is not None:
            return
        if self._queue.qsize() >= MAX_QUEUED_RECORDS:
            self._fail("the disk is too slow")
            return
        encoded = record.SerializeToString()
        self._queue.put(varint(len(encoded)) + encoded)

    def _fail(self, why: str) -> None:
        self._failure = why
        log.error("recording ended", path=self._name, reason=why)

    def _run(self) -> None:
        try:
            with self._file:
                while (encoded := self._queue.get()) is not None and self._failure is None:
                    self._file.write(encoded)
                    if self._queue.empty():
                        self._file.flush()
        except OSError as error:
            self._fail(str(error))


def new_recording(path: Path) -> RecordingWriter:
    """A writer into a new file. Errors: SetupError when the file exists already or cannot be
    made.
    """
    try:
        return RecordingWriter(path.open("xb"), str(path))
    except FileExistsError:
        raise SetupError(
            f"{path} exists already: give the recording another name, or move that file"
        ) from None
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}") from error


def varint(number: int) -> bytes:
    """As protobuf writes lengths: 7 bits a byte, the low ones first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class RecordingCutError(Exception):
    """No whole record begins at byte `offset`, and the file does not end there."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset
        self.why = why


class Record(NamedTuple):
    """A record and the byte where its length begins."""

    offset: int
    message: pb.RecordedMessage


class Recording:
    """A file of records, open for reading until the context ends. Positions are byte offsets."""

    def __init__(self, path: Path) -> None:
        """Errors: SetupError when the file cannot be read, or is no recording of our version."""
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise SetupError(f"{path} cannot be read: {error.strerror}") from error
        try:
            self._file_bytes = path.stat().st_size
            self._check_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Every record after the header, in order. Errors: RecordingCutError."""
        self._file.seek(self._first_offset)
        while (offset := self._file.tell()) < self._file_bytes:
            message = self._read(offset)
            if message.WhichOneof("message") in (None, "header"):
                raise RecordingCutError(offset, "holds no message that may stand there")
            yield Record(offset, message)

    def plan_at(self, offset: int) -> runner_pb2.Plan:
        """The plan whose record begins at `offset`, as `records` told."""
        self._file.seek(offset)
        return self._read(offset).plan

    def _check_header(self) -> None:
        if not self._file_bytes:
            raise SetupError(f"{self.path} is empty: it is no recording")
        try:
            message = self._read(0)
        except RecordingCutError:
            message = pb.RecordedMessage()
        if message.WhichOneof("message") != "header":
            raise SetupError(
                f"{self.path} is no recording of a plan stream, or is cut in its header"
            )
        if message.header.format_version != FORMAT_VERSION:
            raise SetupError(
                f"{self.path} is of format version {message.header.format_version}; this pagewire "
                f"reads {FORMAT_VERSION}"
            )
        self._first_offset = self._file.tell()

    def _read(self, offset: int) -> pb.RecordedMessage:
        """The record at `offset`, where the file stands. Errors: RecordingCutError."""
        length = self._read_varint(offset)
        if length > self._file_bytes - self._file.tell():
            raise RecordingCutError(offset, "is cut")
        try:
            return pb.RecordedMessage.FromString(self._file.read(length))
        except DecodeError as error:
            raise RecordingCutError(offset, "cannot be decoded") from error

    def _read_varint(self, offset: int) -> int:
        number = 0
        for index in range(MAX_VARINT_BYTES):
            byte = self._file.read(1)
            if not byte:
                raise RecordingCutError(offset, "is cut in its length")
            number |= (byte[0] & 0x7F) << (7 * index)
            if byte[0] < 0x80:
                return number
        raise RecordingCutError(offset, "has no length that can be")
