"""A Unix socket path has one owner.

gRPC replaces a socket file in silence even while a live server listens on it, so the right to the
path is a lock on a file beside it. The kernel drops the lock with its process, however that dies.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from servicekit.errors import SetupError


class SocketLock:
    """The right to listen on `path`, held from construction to `release()`."""

    def __init__(self, path: Path) -> None:
        """Take the lock, making the directory (mode 0700) where it is missing. Errors: SetupError
        while another process owns it.
        """
        self.path = path
        self._lock_path = path.with_name(path.name + ".lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = self._lock()
            path.unlink(missing_ok=True)  # what a killed owner left
        except OSError as error:
            raise SetupError(f"socket {path} cannot be made: {error.strerror}") from error

    def _lock(self) -> int:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise SetupError(
                    f"socket {self.path} is in use by another process: stop it, or listen elsewhere"
                ) from None
            if self._is_current(fd):
                return fd
            os.close(fd)  # its owner removed the file between our open and our lock

    def _is_current(self, fd: int) -> bool:
        try:
            return os.fstat(fd).st_ino == self._lock_path.stat().st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the socket and the lock file, then let go."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._fd)
