"""One bad input after the other, each a function of the seed and its number alone."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.fuzz.messages import KINDS
from tests.fuzz.rpcs import RPCS, Rpc

NO_METADATA: tuple[tuple[str, str | bytes], ...] = ()
ODD_METADATA = (
    (("traceparent", "00-zz"),),
    (("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"),),
    (("traceparent", "x" * 3_000), ("traceparent", "")),
    (("traceparent-bin", b"\xff\x00"), ("grpc-tags-bin", b"\xff")),
    (("authorization", "Bearer  "),),
)


class Input(NamedTuple):
    number: int
    rpc: Rpc
    kind: str
    message: bytes
    leaves_after_s: float | None  # the caller goes then; None: it waits
    deadline_s: float | None
    metadata: tuple[tuple[str, str | bytes], ...]

    def __str__(self) -> str:
        """What to send again."""
        shown = self.message[:600].hex()
        return f"input {self.number}, {self.kind} of {self.rpc.name}: {shown}"


def input_of(seed: int, number: int) -> Input:
    rng = random.Random(f"{seed} {number}")
    (rpc,) = rng.choices(RPCS, [each.weight for each in RPCS])
    (kind,) = rng.choices(list(KINDS), [often for _, often in KINDS.values()])
    message = KINDS[kind][0](rng, rpc.takes, rng.choice(rpc.good))
    leaves = rng.random() < 0.1
    hurries = not leaves and rng.random() < 0.05
    return Input(
        number,
        rpc,
        kind,
        message,
        leaves_after_s=rng.choice((0.0, 0.001, 0.005, 0.02)) if leaves else None,
        deadline_s=rng.choice((0.001, 0.004, 0.015)) if hurries else None,
        metadata=rng.choice(ODD_METADATA) if rng.random() < 0.05 else NO_METADATA,
    )
