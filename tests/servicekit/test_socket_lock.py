"""A Unix socket path has one owner, however owners come and go."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from servicekit.errors import SetupError
from servicekit.path_lock import PathInUseError, remove_left
from servicekit.socket_lock import SocketLock

OWNER = """
import pathlib, socket, sys, time
from servicekit.socket_lock import SocketLock
path = pathlib.Path(sys.argv[1])
lock = SocketLock(path)
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(path))
print("owns", flush=True)
sys.stdin.read()
"""


def owner_process(path: Path) -> subprocess.Popen[str]:
    """Another process that owns `path` and listens there."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "owns\n"
    return owner


def kill(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()


def test_a_second_owner_is_refused_and_the_first_keeps_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    owner = owner_process(path)
    try:
        with pytest.raises(SetupError) as caught:
            SocketLock(path)
        assert str(path) in str(caught.value)
        assert "is in use by another process" in str(caught.value)
        assert path.is_socket()
        with pytest.raises(SetupError):  # and again
            SocketLock(path)
    finally:
        kill(owner)


def test_what_a_killed_owner_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    kill(owner_process(path))
    assert path.is_socket()
    lock = SocketLock(path)
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    lock.release()


def test_release_leaves_no_file_and_the_path_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    for _ in range(2):
        lock = SocketLock(path)
        path.touch()
        lock.release()
        assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pagewire" / "a.sock"
    lock = SocketLock(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lock.release()


def test_paths_beside_each_other_have_owners_of_their_own(tmp_path: Path) -> None:
    locks = [SocketLock(tmp_path / name) for name in ("a.sock", "b.sock")]
    for lock in locks:
        lock.release()


def test_an_owner_that_leaves_between_open_and_lock_leaves_a_lock_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked was then a file that nobody can open any more: two owners of one path."""
    path = tmp_path / "a.sock"
    leaving = SocketLock(path)
    flock = fcntl.flock

    def release_first(fd: int, operation: int) -> None:
        monkeypatch.undo()
        leaving.release()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", release_first)
    lock = SocketLock(path)
    with pytest.raises(SetupError):
        SocketLock(path)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_of_many_who_come_at_once_there_is_one_owner_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    owners: list[int] = []
    overlaps: list[int] = []
    owned: list[int] = []

    def come_and_go(name: int) -> None:
        for _ in range(300):
            try:
                lock = SocketLock(path)
            except SetupError:
                continue
            owners.append(name)
            overlaps.extend(owners[:-1])
            owned.append(name)
            owners.remove(name)
            lock.release()

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert owned
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_removed_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    owner = owner_process(path)
    with pytest.raises(PathInUseError):
        remove_left(path)
    assert path.is_socket()
    kill(owner)
    for _ in range(2):
        remove_left(path)
        assert list(tmp_path.iterdir()) == []
