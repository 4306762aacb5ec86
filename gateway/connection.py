"""How a command reaches a server: address, API key, TLS. One set of flags for all commands."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.api_keys import read_api_keys
from gateway.serve_config import DEFAULT_ADDRESS
from servicekit.errors import SetupError

API_KEY_VARIABLE = "PAGEWIRE_API_KEY"


@dataclass(frozen=True, slots=True)
class Connection:
    """`api_key` goes along with each call whose metadata is `metadata`."""

    address: str
    api_key: str | None = None
    credentials: grpc.ChannelCredentials | None = None  # None: no TLS

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self.api_key is None else (("authorization", f"Bearer {self.api_key}"),)

    def channel(self) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address)
        return grpc.aio.secure_channel(self.address, self.credentials)


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=DEFAULT_ADDRESS, help=f"server to ask [{DEFAULT_ADDRESS}]"
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"its first line is the server's API key, KEY or NAME:KEY [${API_KEY_VARIABLE}]",
    )
    parser.add_argument("--tls", action="store_true", help="the server has TLS")
    parser.add_argument("--tls-ca", metavar="FILE", help="who signed its certificate; means --tls")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this client, for mTLS")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert")


def connection_of(options: argparse.Namespace) -> Connection:
    """What the flags say. Errors: SetupError for a file that cannot be read."""
    api_key = os.environ.get(API_KEY_VARIABLE)
    if options.api_key_file is not None:
        api_key = next(iter(read_api_keys(options.api_key_file).values()))
    if (options.tls_cert is None) != (options.tls_key is None):
        raise SetupError("--tls-cert and --tls-key go together")
    files = (options.tls_ca, options.tls_key, options.tls_cert)
    credentials = None
    if options.tls or any(files):
        credentials = grpc.ssl_channel_credentials(*map(_read, files))
    return Connection(options.address, api_key, credentials)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from error
