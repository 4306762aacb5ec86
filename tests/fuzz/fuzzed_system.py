"""The system under bad input: real gateway and manager, over a runner without a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc

from servicekit.health_check import is_serving
from servicekit.model_dir import fingerprint
from tests.e2e.system import System, running
from tests.gateway.tiny_tokenizers import byte_level_backend, save_model_dir

MAX_MESSAGE_BYTES = 65_536
CHAT_TEMPLATE = (
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\\n' }}"
    "{% if turn['tool_calls'] %}{{ turn['tool_calls'] | tojson }}{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
COUNTS_OF_TROUBLE = ("failed_total", "refused_total", "healed_total", "quarantined_pages")
FEW_PAGES = {"num_pages": 96, "max_running_reqs": 12, "max_seq_len": 256, "vocab_size": 1000}


class FuzzedSystem(System):
    """In a pool of six of the longest answers, so that there is eviction and preemption too."""

    def __init__(self, run_dir: Path) -> None:
        model_dir = save_model_dir(
            run_dir / "tiny", byte_level_backend(), chat_template=CHAT_TEMPLATE
        )
        super().__init__(model_dir, run_dir, **FEW_PAGES, max_message_bytes=MAX_MESSAGE_BYTES)

    def command(self, name: str) -> list[str]:
        command = super().command(name)
        if name == "gateway":
            return [*command, "--load-format", "dummy", "--smg"]
        if name == "runnersvc":
            served = ["--fingerprint", fingerprint(self.model_dir, "dummy")]
            model_at = command.index("--model")
            rest = command[3:model_at] + command[model_at + 2 :]
            return [sys.executable, "-m", "runnersvc.fake", *rest, *served]
        return command

    @property
    def deaths(self) -> list[str]:
        return [name for name, each in self.processes.items() if each.poll() is not None]

    def violations(self) -> list[str]:
        """Of `CheckIntegrity`."""
        with grpc.insecure_channel(self.cache_address) as channel:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            answer = stub.CheckIntegrity(cache_pb2.CheckIntegrityRequest(), timeout=30)
        return list(answer.violations)

    async def troubles(self) -> list[str]:
        """What bad input must not do to it, once all of that has ended."""
        if self.deaths:
            return [f"{name} ended: {self.log_of(name)[-2000:]}" for name in self.deaths]
        stats = await self.settled()
        troubles = [f"violation: {each}" for each in self.violations()]
        if not is_serving(self.address):
            troubles.append("the gateway is not SERVING")
        counts = {name: getattr(stats, name) for name in COUNTS_OF_TROUBLE}
        troubles += [f"{name} is {count}" for name, count in counts.items() if count]
        troubles.extend(filter(None, map(self._logged_failure, self.processes)))
        return troubles

    def _logged_failure(self, name: str) -> str:
        before, stack, after = self.log_of(name).partition("Traceback")
        return f"{name} logged: {before[-500:]}{stack}{after[:3000]}" if stack else ""


@contextmanager
def fuzzed_system(run_dir: Path) -> Iterator[FuzzedSystem]:
    with running(FuzzedSystem(run_dir)) as system:
        yield system
