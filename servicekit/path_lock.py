"""The right to a path, as a lock on a file beside it. The kernel drops it with its process, however
that dies.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class PathInUseError(Exception):
    """Another process holds the path."""


class PathLock:
    """The right to `path`, held from construction to `release()`."""

    def __init__(self, path: Path) -> None:
        """Take it, making the directory (mode 0700) where it is missing. Errors: PathInUseError;
        OSError when the file of the lock cannot be made.
        """
        self._lock_path = _lock_path_of(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = self._lock()

    def _lock(self) -> int:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise PathInUseError(str(self._lock_path)) from None
            if self._is_current(fd):
                return fd
            os.close(fd)  # its owner removed the file between our open and our lock

    def _is_current(self, fd: int) -> bool:
        try:
            return os.fstat(fd).st_ino == self._lock_path.stat().st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the file of the lock, then let go."""
        self._lock_path.unlink(missing_ok=True)
        os.close(self._fd)


def remove_left(path: Path, *beside: Path) -> None:
    """Remove `path`, what its owner makes `beside` it, and the file of its lock, if a killed owner
    left any. Errors: PathInUseError while another process owns it.
    """
    if any(left.exists() for left in (path, *beside, _lock_path_of(path))):
        lock = PathLock(path)
        for left in (path, *beside):
            left.unlink(missing_ok=True)
        lock.release()


def _lock_path_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")
