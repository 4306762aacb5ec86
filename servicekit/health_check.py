"""`python -m servicekit.health_check ADDRESS`: exit 0 when the service there is SERVING, for
containers and supervisors.
"""

from __future__ import annotations

import sys
from enum import Enum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Health(Enum):
    """What comes of asking."""

    SERVING = "it serves"
    NOT_SERVING = "it answers, and does not serve"
    SILENT = "it does not answer in time"
    ABSENT = "nobody listens"


def health_of(address: str, timeout_s: float = 2.0) -> Health:
    """What the server at `address` ("unix:PATH" or "HOST:PORT") answers within `timeout_s`
    seconds.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return Health.SILENT if late else Health.ABSENT
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return Health.SERVING if serving else Health.NOT_SERVING


def is_serving(address: str, timeout_s: float = 2.0) -> bool:
    """Whether `health_of` is SERVING."""
    return health_of(address, timeout_s) is Health.SERVING


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m servicekit.health_check ADDRESS\n")
        sys.exit(2)
    sys.exit(0 if is_serving(sys.argv[1]) else 1)
