"""Certificates and keys: what fits together, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from servicekit.errors import SetupError
from servicekit.tls import Tls
from tests.servicekit.certificates import write_certificates


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of files to choose from."""
    directory = write_certificates(tmp_path_factory.mktemp("pem"))
    key = serialization.load_pem_private_key((directory / "server.key").read_bytes(), None)
    (directory / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    (directory / "junk").write_text("junk\n")
    return directory


def read(pem: Path, *names: str | None) -> Tls | None:
    cert, key, client_ca = (None if name is None else str(pem / name) for name in names)
    return Tls.read(cert, key, client_ca)


@pytest.mark.parametrize("client_ca", [None, "ca"])
def test_what_fits_together_is_taken(pem: Path, client_ca: str | None) -> None:
    tls = read(pem, "server.cert", "server.key", client_ca)
    ca = None if client_ca is None else str(pem / client_ca)
    assert tls == Tls(str(pem / "server.cert"), str(pem / "server.key"), ca)


def test_nothing_is_no_tls(pem: Path) -> None:
    assert read(pem, None, None, None) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("server.cert", None, None), "both --tls-cert and --tls-key"),
        ((None, "server.key", None), "both --tls-cert and --tls-key"),
        ((None, None, "ca"), "both --tls-cert and --tls-key"),
        (("absent", "server.key", None), "--tls-cert .*absent cannot be read: No such file"),
        (("server.cert", "absent", None), "--tls-key .*absent cannot be read: No such file"),
        (
            ("server.cert", "server.key", "absent"),
            "--tls-client-ca .*absent cannot be read",
        ),
        (("server.cert", "client.key", None), "client.key is not the key of the certificate in"),
        (("junk", "server.key", None), "must hold a certificate chain and its key"),
        (("server.key", "server.cert", None), "must hold a certificate chain and its key"),
        (("server.cert", "locked.key", None), "without a password"),
        (("server.cert", "server.key", "junk"), "--tls-client-ca .*junk holds no certificates"),
    ],
)
def test_what_does_not_is_refused_in_one_sentence(
    pem: Path, names: tuple[str | None, ...], why: str
) -> None:
    with pytest.raises(SetupError, match=why) as refused:
        read(pem, *names)
    assert "\n" not in str(refused.value)
