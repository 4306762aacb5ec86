"""Serving a model's plans, whatever the model is: health while it loads, the manager, drain. No
torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

import structlog
from pagewire.v1 import runner_pb2_grpc

from runnersvc.executor import ExecutesPlans
from runnersvc.metrics import collected
from runnersvc.runner import Runner
from runnersvc.service import RunnerService
from servicekit.errors import FatalError
from servicekit.host import ServiceHost
from servicekit.metrics import metrics_endpoint
from servicekit.plan import RunnerDescription
from servicekit.process import end_at_once

log = structlog.get_logger()

SERVICE_NAME = "pagewire.v1.RunnerService"
STREAM_END_S = 1.0  # for the last answers to be written
STEP_END_S = 1.0  # for the device to be done with what was accepted
CHECK_S = 1.0  # whether a step ended

Load: TypeAlias = Callable[[], tuple[ExecutesPlans, RunnerDescription]]


class ServingConfig(Protocol):
    """The settings of serving, of a runner of any kind."""

    @property
    def listen(self) -> str: ...
    @property
    def metrics(self) -> str | None: ...
    @property
    def grace_s(self) -> float: ...
    @property
    def max_step_s(self) -> float: ...
    @property
    def parent_fd(self) -> int | None: ...


async def serve_model(config: ServingConfig, load: Load) -> None:
    """Run until SIGTERM; `load` is called on a thread of its own once the address answers. The
    process ends here when that thread, or a step, does not end with the rest, and with exit code 1
    when a step takes longer than `max_step_s`: whoever supervises starts another.

    Errors: SetupError when an address is taken, or what `load` raises; FatalError when a plan
    failed while it was executed.
    """
    service = RunnerService()
    host = ServiceHost(config.listen, [SERVICE_NAME])
    runner_pb2_grpc.add_RunnerServiceServicer_to_server(service, host.grpc_server)
    await host.start(config.parent_fd)
    try:
        async with metrics_endpoint(config.metrics, lambda: collected(service.runner)):
            exit_code = await _serve_loaded(service, host, config, load)
    finally:
        await host.stop(0)
    if exit_code is not None:
        end_at_once(exit_code)


async def _serve_loaded(
    service: RunnerService, host: ServiceHost, config: ServingConfig, load: Load
) -> int | None:
    """With which exit code to end at once, since a thread still works; None when none does."""
    stop = asyncio.create_task(host.wait_for_stop())
    loading = asyncio.create_task(asyncio.to_thread(load))
    await asyncio.wait((stop, loading), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        log.info("ends before the model is loaded")
        return 0
    model, description = loading.result()
    runner = Runner(model, description)
    service.load(runner)
    await host.set_serving(serving=True)
    failed = asyncio.create_task(runner.failed.wait())
    hung = asyncio.create_task(_until_a_step_hangs(runner, config.max_step_s))
    await asyncio.wait((stop, failed, hung), return_when=asyncio.FIRST_COMPLETED)
    if hung.done():
        log.error("a step does not end", plan_id=hung.result(), max_step_s=config.max_step_s)
        await host.drain()
        return 1
    hung.cancel()
    if failed.done():
        await host.stop(STREAM_END_S)  # the manager is told of the plan first
        raise FatalError("a plan failed while it was executed; the log above says why")
    await host.within_grace(asyncio.create_task(service.ended()), config.grace_s)
    await service.drain()
    await host.stop(STREAM_END_S)
    stopping = asyncio.create_task(asyncio.to_thread(runner.stop))
    await asyncio.wait((stopping,), timeout=STEP_END_S)
    if not stopping.done():
        log.warning("ends before the last step did")
        return 0
    stopping.result()
    return None


async def _until_a_step_hangs(runner: Runner, max_step_s: float) -> int:
    """The plan that has been the oldest without a result for `max_step_s` seconds, as counted by
    checks: a clock goes on while we are stopped ourselves.
    """
    check_s = min(CHECK_S, max_step_s)
    plan_id, waited_s = runner.oldest_plan_id, 0.0
    while plan_id is None or waited_s < max_step_s:
        await asyncio.sleep(check_s)
        waited_s = waited_s + check_s if runner.oldest_plan_id == plan_id else 0.0
        plan_id = runner.oldest_plan_id
    return plan_id
