"""TLS of a server: its certificate, its key, and whose clients it takes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from servicekit.errors import SetupError


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files that were read and fit together. With `client_ca`, clients must have a
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
        for option, path in (("cert", cert), ("key", key), ("client-ca", client_ca)):
            if path is not None:
                _check_readable(f"--tls-{option}", path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(cert, key, password="")  # a key with a password is refused
        except ssl.SSLError as error:
            raise SetupError(_why_not(error, cert, key)) from error
        if client_ca is not None:
            try:
                context.load_verify_locations(client_ca)
            except ssl.SSLError as error:
                raise SetupError(
                    f"--tls-client-ca {client_ca} holds no certificates in PEM"
                ) from error
        return cls(cert, key, client_ca)


def _check_readable(option: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"{option} {path} cannot be read: {error.strerror}") from error


def _why_not(error: ssl.SSLError, cert: str, key: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"--tls-key {key} is not the key of the certificate in --tls-cert {cert}"
    return (
        f"--tls-cert {cert} and --tls-key {key} must hold a certificate chain and its key without "
        "a password, both in PEM"
    )
