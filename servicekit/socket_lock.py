"""A Unix socket path has one owner.

gRPC replaces a socket file in silence even while a live server listens on it, so the right to the
path is a lock.
"""

from __future__ import annotations

from pathlib import Path

from servicekit.errors import SetupError
from servicekit.path_lock import PathInUseError, PathLock


class SocketLock:
    """The right to listen on `path`, held from construction to `release()`."""

    def __init__(self, path: Path) -> None:
        """Take the lock, making the directory (mode 0700) where it is missing. Errors: SetupError
        while another process owns it.
        """
        self.path = path
        try:
            self._lock = PathLock(path)
            path.unlink(missing_ok=True)  # what a killed owner left
        except PathInUseError:
            raise SetupError(
                f"socket {path} is in use by another process: stop it, or listen elsewhere"
            ) from None
        except OSError as error:
            raise SetupError(f"socket {path} cannot be made: {error.strerror}") from error

    def release(self) -> None:
        """Remove the socket and the lock file, then let go."""
        self.path.unlink(missing_ok=True)
        self._lock.release()
