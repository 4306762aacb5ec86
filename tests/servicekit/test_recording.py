"""The file of a recorded plan stream: what is written is read, and a cut is named anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagewire.v1 import recording_pb2 as pb

from servicekit.errors import SetupError
from servicekit.plan_codec import decode_plan, encode_plan
from servicekit.recording import (
    Recording,
    RecordingCutError,
    RecordingWriter,
    new_recording,
    varint,
)
from tests.runnersvc.plans import decode, prefill
from tests.servicekit.recorded import ATTACHED, failed, refusal, result, write
from tests.servicekit.test_plan_codec import assert_same

RESULT = result(1, 5, table_digest=2**64 - 1)
REFUSAL = refusal(2)
FAILED = failed(2)
HEADER_BYTES = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of one attach, three plans, a result, a refusal and a failure."""
    path = tmp_path / "stream"
    write(path, ATTACHED, prefill(), RESULT, decode(2, 3), REFUSAL, prefill(2), FAILED)
    return path


def messages(path: Path) -> list[str | None]:
    with Recording(path) as recording:
        return [record.message.WhichOneof("message") for record in recording.records()]


def test_what_is_written_is_read_in_order(path: Path) -> None:
    with Recording(path) as recording:
        attached, first, result, second, refusal, _, failed = recording.records()
        assert attached.message.attached == ATTACHED
        assert_same(decode_plan(first.message.plan), prefill())
        assert result.message.result == RESULT
        assert refusal.message.refusal == REFUSAL
        assert failed.message.failed == FAILED
        assert recording.plan_at(second.offset) == encode_plan(decode(2, 3))


def test_it_is_the_format_that_any_protobuf_reads_length_delimited(path: Path) -> None:
    header = pb.RecordedMessage(header=pb.RecordingHeader(format_version=1)).SerializeToString()
    assert path.read_bytes().startswith(bytes([len(header)]) + header)
    assert varint(0) == b"\x00"
    assert varint(300) == b"\xac\x02"


def test_a_recording_cut_anywhere_ends_cleanly_or_names_the_byte(path: Path) -> None:
    whole = path.read_bytes()
    with Recording(path) as recording:
        starts = [record.offset for record in recording.records()]
    ends = [*starts, len(whole)]
    cut = path.with_name("cut")
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        if length < HEADER_BYTES:
            with pytest.raises(SetupError, match="is no recording"):
                Recording(cut)
        elif length in ends:
            assert len(messages(cut)) == ends.index(length)
        else:
            with pytest.raises(RecordingCutError) as caught:
                messages(cut)
            assert caught.value.offset == max(start for start in starts if start <= length)


@pytest.mark.parametrize(
    "damage", [b"\x00", b"\x00" * 40, b"\x03abc", b"\xff" * 12, varint(2**62), b"\x02\x0a\x00"]
)
def test_what_follows_the_records_and_is_none_is_named(path: Path, damage: bytes) -> None:
    """Zeros, as a host that lost power leaves them, rubbish, lengths that cannot be, a header."""
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    with pytest.raises(RecordingCutError) as caught:
        messages(path)
    assert caught.value.offset == len(whole)


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file\n", b"\x7fELF" * 50, b"\x00"])
def test_another_file_is_no_recording(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SetupError, match=f"{path} is"):
        Recording(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nothing cannot be read: No such file"):
        Recording(tmp_path / "nothing")
    with pytest.raises(SetupError, match="cannot be read: Is a directory"):
        Recording(tmp_path)


def test_another_format_version_is_refused_with_both(path: Path) -> None:
    header = pb.RecordedMessage(header=pb.RecordingHeader(format_version=2)).SerializeToString()
    path.write_bytes(varint(len(header)) + header)
    with pytest.raises(SetupError, match="format version 2; this pagewire reads 1"):
        Recording(path)


def test_a_file_that_exists_is_not_written_over(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(SetupError, match="exists already"):
        new_recording(path)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be written: No such file"):
        new_recording(tmp_path / "nowhere" / "stream")


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    """/dev/full takes nothing; what is recorded later is dropped in silence."""
    with RecordingWriter(Path("/dev/full").open("wb"), "full") as writer:
        for _ in range(3):
            writer.plan(prefill())
    assert writer.failure is not None
    assert "No space left" in writer.failure
    writer.plan(prefill())
