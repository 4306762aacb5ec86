"""PEM files of TLS: whether they are what they should be; and those of a server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from servicekit.errors import SetupError


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of files that were read and fit together. With `client_ca`, clients must have a
    certificate that it signed.
    """

    cert: str
    key: str
    client_ca: str | None

    @classmethod
    def read(cls, cert: str | None, key: str | None, client_ca: str | None) -> Tls | None:
        """None when none is given. Errors: SetupError when that is no way to serve."""
        if cert is None and key is None and client_ca is None:
            return None
        if cert is None or key is None:
            raise SetupError("TLS needs both --tls-cert and --tls-key")
        check_pair(cert, key)
        if client_ca is not None:
            check_authorities("--tls-client-ca", client_ca)
        return cls(cert, key, client_ca)


def check_pair(cert: str, key: str) -> None:
    """Errors: SetupError unless they are a certificate chain and its key, without a password."""
    _check_readable("--tls-cert", cert)
    _check_readable("--tls-key", key)
    try:
        _context().load_cert_chain(cert, key, password="")  # else a locked key asks the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SetupError(
                f"--tls-key {key} is not the key of the certificate in --tls-cert {cert}"
            ) from error
        raise SetupError(
            f"--tls-cert {cert} and --tls-key {key} must hold a certificate chain and its key "
            "without a password, both in PEM"
        ) from error


def check_authorities(option: str, path: str) -> None:
    """Errors: SetupError unless there are certificates at the path that `option` gave."""
    _check_readable(option, path)
    try:
        _context().load_verify_locations(path)
    except ssl.SSLError as error:
        raise SetupError(f"{option} {path} holds no certificates in PEM") from error


def _check_readable(option: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"{option} {path} cannot be read: {error.strerror}") from error


def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
