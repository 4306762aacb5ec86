"""The journal as a file that one process holds.

It has to outlive the manager and not the machine: with the machine the runner's memory is gone too,
so nothing is synced to the disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import structlog

from cachesvc.journal import Entry, Head, Kept
from cachesvc.journal_format import decode, encode_entry, encode_head
from servicekit.errors import SetupError
from servicekit.path_lock import PathInUseError, PathLock

log = structlog.get_logger()

LEAST_LONG_BYTES = 8 * 2**20
GROWTH = 4  # times what it began with, and it is long


class JournalFile:
    """A `Journal` at `path`, held from construction to `close()`. It has the ids of prompts and
    answers: only its owner may read it.
    """

    def __init__(self, path: Path) -> None:
        """Takes the path, and reads what is there. Errors: SetupError when another process has it,
        or it cannot be read or made.
        """
        self.path = path
        self._fd: int | None = None  # None: nothing is written
        self._file_bytes = self._first_bytes = 0
        try:
            self._lock = PathLock(path)
        except PathInUseError:
            raise SetupError(
                f"journal {path} is in use by another process: stop it, or give another --journal"
            ) from None
        except OSError as error:
            raise SetupError(f"journal {path} cannot be made: {error.strerror}") from error
        try:
            self.kept: Kept | None = decode(path.read_bytes()) if path.exists() else None
        except OSError as error:
            self._lock.release()
            raise SetupError(f"journal {path} cannot be read: {error.strerror}") from error

    @property
    def is_long(self) -> bool:
        return self._file_bytes > max(LEAST_LONG_BYTES, GROWTH * self._first_bytes)

    def append(self, entry: Entry) -> None:
        if self._fd is None:
            return
        try:
            self._file_bytes += _write(self._fd, encode_entry(entry))
        except OSError as error:
            self._end(error)

    def discard(self) -> None:
        self._close_fd()
        self._remove(self.path)

    def replace(self, head: Head, entry: Entry) -> None:
        new_path = self.path.with_name(self.path.name + ".new")
        self._close_fd()
        try:
            self._fd = os.open(
                new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            self._first_bytes = _write(self._fd, encode_head(head) + encode_entry(entry))
            self._file_bytes = self._first_bytes
            new_path.replace(self.path)
        except OSError as error:
            self._end(error)
            self._remove(new_path, self.path)

    def _end(self, error: OSError) -> None:
        log.error("journal ended: after a restart all is computed again", reason=str(error))
        self._close_fd()
        self._file_bytes = self._first_bytes = 0

    def _remove(self, *paths: Path) -> None:
        """What is there is of no use any more: numbers of plans may come again."""
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.error("remove this file before a restart", path=str(path), reason=str(error))

    def _close_fd(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Let go of the path. The file stays, for the next one."""
        self._close_fd()
        self._lock.release()


def _write(fd: int, record: bytes) -> int:
    """Returns how many bytes that were. Errors: OSError, also when the disk takes only a part."""
    written = os.write(fd, record)
    if written < len(record):
        raise OSError(errno.ENOSPC, f"{written} of {len(record)} bytes could be written")
    return written
