"""The manager's counts as the router's load of one rank."""

from __future__ import annotations

from datetime import datetime

from pagewire.v1 import cache_pb2
from smg_grpc_proto import vllm_engine_pb2 as pb


def loads_of(stats: cache_pb2.GetStatsResponse, now: datetime) -> pb.GetLoadsResponse:
    """Used are the tokens of pages that a running request holds: what is cached only can go. What
    is not counted here (tokens a second, what of the waiting prompts is cached) stays 0.
    """
    used_pages = stats.private_pages + stats.locked_pages
    usage = used_pages / max(1, stats.num_pages)
    load = pb.SchedulerLoad(
        num_running_reqs=stats.running_requests,
        num_waiting_reqs=stats.waiting_requests,
        num_total_reqs=stats.running_requests + stats.waiting_requests,
        num_used_tokens=used_pages * stats.page_size,
        max_total_num_tokens=stats.num_pages * stats.page_size,
        token_usage=usage,
        utilization=usage,
        cache_hit_rate=stats.cached_tokens_total / max(1, stats.admitted_prompt_tokens_total),
    )
    return pb.GetLoadsResponse(timestamp=now.isoformat(), dp_rank_count=1, loads=[load])
