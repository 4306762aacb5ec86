"""Small worlds: a runner's description, a submission, a core with something behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cachesvc.core import Core
from cachesvc.ledger import Ledger
from cachesvc.limits import Limits
from cachesvc.live_requests import LiveRequests
from cachesvc.manager import CacheManager
from cachesvc.request import Req, Submission
from servicekit.plan import Attached, Int32Array, Plan, RowOpen, RunnerDescription
from servicekit.sampling import Sampling

TINY = RunnerDescription(
    model_fingerprint="tiny",
    num_layers=1,
    num_kv_heads=1,
    head_dim=2,
    dtype="float32",
    page_size=4,
    num_pages=8,
    num_rows=3,
    max_seq_len=24,
    vocab_size=16,
    rank=0,
    num_ranks=1,
)


def ints(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def describe(**changes: object) -> RunnerDescription:
    """The tiny runner (4 tokens a page, 8 pages, 3 rows, 24 positions, 16 ids), changed."""
    return replace(TINY, **changes)  # type: ignore[arg-type] # the tests name real fields


def submission(
    key: int = 1,
    prompt: Sequence[int] = (1, 2, 3),
    *,
    max_tokens: int | None = None,
    seed: int | None = None,
    stop: Sequence[int] = (),
    resume: Sequence[int] = (),
    sampling: Sampling | None = None,
    **changes: object,
) -> Submission:
    return Submission(
        key=key,
        request_id=f"request-{key}",
        prompt_ids=ints(*prompt),
        sampling=sampling or Sampling(seed=key if seed is None else seed),
        max_tokens=max_tokens,
        stop_token_ids=ints(*stop),
        resume_token_ids=ints(*resume),
        **changes,  # type: ignore[arg-type] # the tests name real fields
    )


def request(
    key: int = 1,
    prompt: Sequence[int] = (1, 2, 3),
    limit_len: int = 24,
    *,
    stop: Sequence[int] = (),
) -> Req:
    """A request as the scheduler holds it, waiting."""
    wanted = submission(key, prompt, stop=stop)
    return replace(LiveRequests(aging_s=1).begin(1, wanted, limit_len, 1, 0), arrival=key)


def new_manager(**changes: object) -> CacheManager:
    """The manager of the tiny runner, changed; what is sampled is shared page by page."""
    runner = describe(**changes)
    limits = Limits(step_budget_tokens=64, credits=2, share_stride_tokens=1)
    return CacheManager(runner, Ledger(runner.page_size, runner.num_pages), limits)


def open_row(manager: CacheManager, req: Req, generation: int = 1) -> int:
    """Admit a request that fits. Returns its row."""
    return manager.open_row(req, generation, manager.find_prefix(req))[0]


def locs_of(manager: CacheManager, idx: int) -> list[int]:
    """The row of the host page table, as far as it has pages."""
    end = int(manager.rows.num_pages[idx]) * manager.page_size
    return manager.page_table.locs[idx, :end].tolist()


def attached_core(budget: int = 64, credits: int | None = 2, **changes: object) -> Core:
    """A core whose runner has just come, with nothing executed."""
    core = Core(Limits(step_budget_tokens=budget, credits=credits))
    core.attached(
        Attached(describe(**changes), boot_id="boot-1", last_executed=0, last_manager_id="")
    )
    return core


def row_open(table_idx: int, prompt_len: int = 3, seed: int = 1) -> RowOpen:
    return RowOpen(table_idx, prompt_len, temperature=1.0, top_k=0, top_p=1.0, seed=seed, choice=0)


def plan(plan_id: int = 1, **fields: object) -> Plan:
    """A plan that does nothing but what `fields` say; sequences become int32 arrays."""
    empty = ints()
    given = {
        name: np.array(value, dtype=np.bool_ if name == "step_samples" else np.int32)
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    }
    base = Plan(
        manager_id="manager-1",
        plan_id=plan_id,
        acked_plan_id=0,
        reset_rows=False,
        close_rows=empty,
        open_rows=(),
        write_rows=empty,
        write_positions=empty,
        write_locs=empty,
        step_rows=empty,
        step_cached_lens=empty,
        step_extend_lens=empty,
        step_num_literals=empty,
        step_samples=np.zeros(0, dtype=np.bool_),
        literal_ids=empty,
    )
    return replace(base, **given)  # type: ignore[arg-type] # as above
