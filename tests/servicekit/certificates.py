"""Certificates for tests: of a server at 127.0.0.1, of a client, and of who signed both."""

from __future__ import annotations

from pathlib import Path

import trustme


def write_certificates(directory: Path) -> Path:
    """Files ca, server.cert, server.key, client.cert, client.key in `directory`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca"))
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        for link in issued.cert_chain_pems:
            link.write_to_path(str(directory / f"{name}.cert"), append=True)
    return directory
