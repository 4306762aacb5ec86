"""Whether the extra [smg] is here. Nothing else in this package can be imported without it."""

from __future__ import annotations

from importlib.util import find_spec

from servicekit.errors import SetupError

PACKAGE = "smg_grpc_proto"


def check_installed(package: str = PACKAGE) -> None:
    """Errors: SetupError where `package`, which has the protocol, is missing."""
    if find_spec(package) is None:
        raise SetupError("--smg needs the extra: pip install 'pagewire[smg]', or leave --smg out")
