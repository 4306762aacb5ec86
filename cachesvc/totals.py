"""Counters that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EndTotals:
    """Requests by how they ended, never began, or came again."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0
    rejected: int = 0
    resubmitted: int = 0  # of a session that was lost
    poisoned: int = 0  # of those that failed: runners died of them


@dataclass
class ScheduleTotals:
    """What steps did."""

    preempted: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    recomputed_tokens: int = 0  # of the prompt tokens, those of requests that came before
    cached_tokens: int = 0  # of first admissions, without requests that came again
    admitted_prompt_tokens: int = 0


@dataclass
class StreamTotals:
    """What happened between manager and runner, and to pages on the way."""

    refused: int = 0
    attached: int = 0
    resent_plans: int = 0
    resent_results: int = 0
    adopted_pages: int = 0
    executor_waited_us: int = 0
    executor_device_us: int = 0
    max_used_pages: int = 0
