"""`python -m servicekit.health_check ADDRESS`: exit 0 when the service there is SERVING, for
containers and supervisors.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def is_serving(address: str, timeout_s: float = 2.0) -> bool:
    """Whether the server at `address` ("unix:PATH" or "HOST:PORT") answers SERVING within
    `timeout_s` seconds.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m servicekit.health_check ADDRESS\n")
        sys.exit(2)
    sys.exit(0 if is_serving(sys.argv[1]) else 1)
