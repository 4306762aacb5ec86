"""How a command reaches a server: address, API key, TLS. One set of flags for all commands."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.api_keys import check_api_key, read_api_keys
from gateway.serve_config import DEFAULT_ADDRESS
from servicekit.errors import FatalError, PagewireError, SetupError
from servicekit.status import reported_by, words_of
from servicekit.tls import check_authorities, check_pair

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

    def error_of(self, failure: grpc.aio.AioRpcError) -> PagewireError | FatalError:
        """What the server reported; a FatalError when none of ours did."""
        if (reported := reported_by(failure)) is not None:
            return reported
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            return FatalError(f"the server at {self.address} is not reached: {words_of(failure)}")
        return FatalError(
            f"the server at {self.address} ends with {failure.code().name}: {words_of(failure)}"
        )


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=DEFAULT_ADDRESS, help=f"server to ask [{DEFAULT_ADDRESS}]"
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"its first key is sent, from a line KEY or NAME:KEY [${API_KEY_VARIABLE}]",
    )
    parser.add_argument("--tls", action="store_true", help="the server has TLS")
    parser.add_argument("--tls-ca", metavar="FILE", help="who signed its certificate; means --tls")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this client, for mTLS")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert")


def connection_of(options: argparse.Namespace) -> Connection:
    """What the flags say. Errors: SetupError for a key or a file that is not what it should be."""
    api_key = os.environ.get(API_KEY_VARIABLE) or None
    if options.api_key_file is not None:
        api_key = next(iter(read_api_keys(options.api_key_file).values()))
    elif api_key is not None:
        check_api_key(api_key, f"${API_KEY_VARIABLE}")
    return Connection(options.address, api_key, _credentials(options))


def _credentials(options: argparse.Namespace) -> grpc.ChannelCredentials | None:
    ca, cert, key = options.tls_ca, options.tls_cert, options.tls_key
    if (cert is None) != (key is None):
        raise SetupError("--tls-cert and --tls-key go together")
    if ca is None and cert is None and not options.tls:
        return None
    if ca is not None:
        check_authorities("--tls-ca", ca)
    if cert is not None:
        check_pair(cert, key)
    files = (None if path is None else Path(path).read_bytes() for path in (ca, key, cert))
    return grpc.ssl_channel_credentials(*files)
