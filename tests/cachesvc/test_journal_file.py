"""The journal on a disk: one owner, replaced at once, and a disk that fails."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from cachesvc.journal import Entry, Head, Removed
from cachesvc.journal_file import GROWTH, LEAST_LONG_BYTES, JournalFile
from cachesvc.journal_format import decode, encode_entry, encode_head
from servicekit.errors import SetupError
from tests.cachesvc.builders import ints
from tests.cachesvc.test_journal_format import HEAD, longs


def entry(plan_id: int) -> Entry:
    return Entry(plan_id, (Removed(ints(1), longs(0)),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal"


def plan_ids(path: Path) -> list[int]:
    return [entry.plan_id for entry in decode(path.read_bytes()).entries]


def test_a_journal_is_found_again_as_it_was_left(path: Path) -> None:
    journal = JournalFile(path)
    assert journal.kept is None
    journal.replace(HEAD, entry(8))
    journal.append(entry(9))
    journal.close()
    found = JournalFile(path)
    assert found.kept is not None
    assert found.kept.head == HEAD
    assert [kept.plan_id for kept in found.kept.entries] == [8, 9]
    found.close()


def test_nothing_is_written_before_it_is_begun_anew(path: Path) -> None:
    """What is there is an earlier manager's, until the first plan of this one."""
    first = JournalFile(path)
    first.replace(HEAD, entry(8))
    first.close()
    second = JournalFile(path)
    second.append(entry(1))
    assert plan_ids(path) == [8]
    second.replace(HEAD, entry(9))
    assert plan_ids(path) == [9]
    second.close()


def test_only_its_owner_may_read_it_and_a_second_one_is_refused(path: Path) -> None:
    journal = JournalFile(path)
    journal.replace(HEAD, entry(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SetupError, match=f"journal {path} is in use by another process"):
        JournalFile(path)
    journal.close()
    assert sorted(left.name for left in path.parent.iterdir()) == ["journal"]


def test_what_a_killed_writer_left_half_written_is_not_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(encode_head(HEAD) + encode_entry(entry(1)) + encode_entry(entry(2))[:-3])
    path.with_name("journal.new").write_bytes(b"half")
    journal = JournalFile(path)
    assert journal.kept is not None
    assert [kept.plan_id for kept in journal.kept.entries] == [1]
    journal.replace(HEAD, entry(2))
    journal.close()
    assert sorted(left.name for left in path.parent.iterdir()) == ["journal"]


def test_a_directory_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"journal {tmp_path} cannot be read: Is a directory"):
        JournalFile(tmp_path)


def test_a_disk_that_fails_ends_the_journal_and_nothing_else(path: Path) -> None:
    journal = JournalFile(path)
    journal.replace(HEAD, entry(1))
    shutil.rmtree(path.parent)
    journal.replace(HEAD, entry(2))
    journal.append(entry(3))
    assert not journal.is_long
    path.parent.mkdir()
    journal.replace(HEAD, entry(4))
    assert plan_ids(path) == [4]
    journal.close()


def test_what_is_discarded_is_gone_at_once_and_begun_anew_later(path: Path) -> None:
    journal = JournalFile(path)
    journal.replace(HEAD, entry(1))
    journal.discard()
    assert not path.exists()
    journal.append(entry(2))
    assert not path.exists()
    journal.replace(HEAD, entry(3))
    assert plan_ids(path) == [3]
    journal.close()


def test_it_is_long_when_it_grew_by_much(path: Path) -> None:
    journal = JournalFile(path)
    large = Entry(1, (Removed(ints(*[1] * 10_000), longs(*[0] * 10_000)),))
    journal.replace(HEAD, large)
    entry_bytes = len(encode_entry(large))
    assert entry_bytes * GROWTH < LEAST_LONG_BYTES
    for _ in range(LEAST_LONG_BYTES // entry_bytes - 1):
        journal.append(large)
    assert not journal.is_long
    journal.append(large)
    journal.append(large)
    assert journal.is_long
    journal.replace(Head(*HEAD), entry(2))
    assert not journal.is_long
    journal.close()
