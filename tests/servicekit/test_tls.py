"""Certificates and keys: what fits together, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from servicekit.errors import SetupError
from servicekit.tls import Tls


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of files to choose from."""
    directory = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    ours, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(directory / "ca"))
    ours.private_key_pem.write_to_path(str(directory / "key"))
    other.private_key_pem.write_to_path(str(directory / "other-key"))
    for link in ours.cert_chain_pems:
        link.write_to_path(str(directory / "cert"), append=True)
    key = serialization.load_pem_private_key(ours.private_key_pem.bytes(), None)
    (directory / "locked-key").write_bytes(
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
    tls = read(pem, "cert", "key", client_ca)
    ca = None if client_ca is None else str(pem / client_ca)
    assert tls == Tls(str(pem / "cert"), str(pem / "key"), ca)


def test_nothing_is_no_tls(pem: Path) -> None:
    assert read(pem, None, None, None) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("cert", None, None), "both --tls-cert and --tls-key"),
        ((None, "key", None), "both --tls-cert and --tls-key"),
        ((None, None, "ca"), "both --tls-cert and --tls-key"),
        (("absent", "key", None), "--tls-cert .*absent cannot be read: No such file"),
        (("cert", "absent", None), "--tls-key .*absent cannot be read: No such file"),
        (("cert", "key", "absent"), "--tls-client-ca .*absent cannot be read: No such file"),
        (("cert", "other-key", None), "other-key is not the key of the certificate in"),
        (("junk", "key", None), "must hold a certificate chain and its key"),
        (("key", "cert", None), "must hold a certificate chain and its key"),
        (("cert", "locked-key", None), "without a password"),
        (("cert", "key", "junk"), "--tls-client-ca .*junk holds no certificates"),
    ],
)
def test_what_does_not_is_refused_in_one_sentence(
    pem: Path, names: tuple[str | None, ...], why: str
) -> None:
    with pytest.raises(SetupError, match=why) as refused:
        read(pem, *names)
    assert "\n" not in str(refused.value)
