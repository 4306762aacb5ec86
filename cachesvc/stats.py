"""GetStats: the core's counters as the message."""

from __future__ import annotations

from pagewire.v1 import cache_pb2 as pb

from cachesvc.core import Core


def stats_of(core: Core) -> pb.GetStatsResponse:
    stream, totals = core.stream, core.totals
    stats = pb.GetStatsResponse(
        attached=stream.attached,
        manager_id=stream.manager_id,
        boot_id=stream.boot_id,
        max_used_pages=totals.max_private_pages,
        last_plan_id=stream.last_plan_id,
        last_result_plan_id=stream.last_result_plan_id,
        finished_total=totals.finished,
        cancelled_total=totals.cancelled,
        failed_total=totals.failed,
        refused_total=totals.refused,
        attached_total=totals.attached,
        executor_waited_us_total=totals.executor_waited_us,
        executor_device_us_total=totals.executor_device_us,
        resent_plans_total=totals.resent_plans,
    )
    if (scheduler := core.scheduler) is not None:
        manager = scheduler.manager
        stats.page_size = manager.page_size
        stats.num_pages = manager.pool.num_pages
        stats.free_pages = manager.pool.free_count
        stats.private_pages = manager.private_count
        stats.running_requests = scheduler.running_count
        stats.waiting_requests = scheduler.waiting_count
        stats.prompt_tokens_total = scheduler.prompt_tokens_total
        stats.sampled_tokens_total = scheduler.sampled_tokens_total
        stats.preempted_total = scheduler.preempted_total
    return stats
