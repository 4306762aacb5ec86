"""The core's counters: all of them as the message of GetStats, and what sessions hear of them."""

from __future__ import annotations

from pagewire.v1 import cache_pb2 as pb

from cachesvc.core import Core
from cachesvc.session import Load


def stats_of(core: Core) -> pb.GetStatsResponse:
    stream, totals, ends = core.stream, core.totals, core.live.totals
    stats = pb.GetStatsResponse(
        attached=stream.attached,
        manager_id=stream.manager_id,
        boot_id=stream.boot_id,
        max_used_pages=totals.max_used_pages,
        last_plan_id=stream.last_plan_id,
        last_result_plan_id=stream.last_result_plan_id,
        finished_total=ends.finished,
        cancelled_total=ends.cancelled,
        failed_total=ends.failed,
        expired_total=ends.expired,
        rejected_total=ends.rejected,
        resubmitted_total=ends.resubmitted,
        refused_total=totals.refused,
        attached_total=totals.attached,
        executor_waited_us_total=totals.executor_waited_us,
        executor_device_us_total=totals.executor_device_us,
        resent_plans_total=totals.resent_plans,
        healed_total=core.healer.healed_total,
        resent_results_total=totals.resent_results,
        adopted_pages_total=totals.adopted_pages,
        runner_silent=core.watch.silent,
        poisoned_total=ends.poisoned,
    )
    if (scheduler := core.scheduler) is not None:
        manager = scheduler.manager
        stats.page_size = manager.page_size
        stats.num_pages = manager.pool.num_pages
        stats.free_pages = manager.pool.free_count
        stats.evictable_pages = manager.tree.evictable_count
        stats.locked_pages = manager.tree.locked_count
        stats.private_pages = manager.private_count
        stats.quarantined_pages = len(manager.quarantined)
        stats.running_requests = scheduler.running_count
        stats.waiting_requests = len(scheduler.waiting)
        stats.prompt_tokens_total = scheduler.totals.prompt_tokens
        stats.recomputed_tokens_total = scheduler.totals.recomputed_tokens
        stats.sampled_tokens_total = scheduler.totals.sampled_tokens
        stats.preempted_total = scheduler.totals.preempted
        stats.cached_tokens_total = scheduler.totals.cached_tokens
        stats.admitted_prompt_tokens_total = scheduler.totals.admitted_prompt_tokens
        stats.evicted_pages_total = manager.evicted_total
    return stats


def load_of(core: Core) -> Load:
    scheduler = core.scheduler
    return Load(
        running_requests=0 if scheduler is None else scheduler.running_count,
        waiting_requests=0 if scheduler is None else len(scheduler.waiting),
        last_result_plan_id=core.stream.last_result_plan_id,
    )
