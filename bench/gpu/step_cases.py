"""What a step does once, whatever its layers: plans, inputs, and the ring of steps in host memory.

They move next to nothing, so their floor is a launch, and for the ring a way to the host. Beside
them is what torch would enqueue without such kernels: indexing, and copies from and to the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.case import DEVICE, ON_GPU, Case
from kernels.gpu.attention_tuning import prefill_config
from kernels.gpu.decode_inputs import decode_inputs
from kernels.gpu.decode_workspace import decode_workspace
from kernels.gpu.page_table import read_page_table
from kernels.gpu.prefill_plan import plan_prefill
from kernels.gpu.step_ring import give_sampled, take_step
from kernels.reference.decode_inputs import decode_inputs as plain_decode_inputs
from kernels.reference.page_table import read_page_table as plain_read_page_table
from kernels.reference.page_table import scatter_page_table as plain_scatter
from kernels.reference.step_ring import STEP_HEAD, StepRing

BATCHES = (1, 64, 256) if ON_GPU else (2,)
NEW_TOKENS = (256, 8192) if ON_GPU else (16,)
CALLS = 64 if ON_GPU else 2  # of a graph: its launch is then little beside them
PAGE_SIZE = 16
WIDTH = 32_768 if ON_GPU else 64
MAX_LEN = WIDTH // 16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128


class Rows(NamedTuple):
    """Rows that decode, and what the device has of all rows; the last one is the dummy's."""

    rows: Tensor
    seq_lens: Tensor
    last_token: Tensor
    page_table: Tensor


def step_cases() -> Iterator[Case]:
    for batch in BATCHES:
        given = rows_of(batch)
        yield decode_plan_case(given)
        yield inputs_case(given)
        yield take_case(given)
        yield give_case(given)
    for num_tokens in NEW_TOKENS:
        yield prefill_plan_case(num_tokens)
        yield table_read_case(num_tokens)


def rows_of(batch: int) -> Rows:
    table_rows = max(BATCHES) + 1
    return Rows(
        torch.randperm(table_rows - 1, device=DEVICE)[:batch].int(),
        torch.randint(1, MAX_LEN, (batch,), device=DEVICE).int(),
        torch.zeros(table_rows, dtype=torch.int32, device=DEVICE),
        torch.zeros(table_rows, WIDTH, dtype=torch.int32, device=DEVICE),
    )


def decode_plan_case(given: Rows) -> Case:
    batch = len(given.rows)
    workspace = decode_workspace(
        batch, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE
    )
    return Case(
        "decode_plan",
        f"{batch}",
        8 * batch + workspace.plan.workers.nbytes + workspace.plan.rows.nbytes,
        [partial(workspace.plan_step, given.rows, given.seq_lens)] * CALLS,
    )


def prefill_plan_case(num_tokens: int) -> Case:
    """Two rows, as many tokens of each cached as new."""
    lens = torch.full((2,), num_tokens // 2, dtype=torch.int32, device=DEVICE)
    group = NUM_HEADS // NUM_KV_HEADS
    config = prefill_config(HEAD_DIM, group, torch.bfloat16)
    call = partial(
        plan_prefill, torch.arange(2, device=DEVICE).int(), lens, lens,
        num_tokens=num_tokens, group=group, config=config,
    )  # fmt: skip
    return Case("prefill_plan", f"2 x {num_tokens // 2}", call().tiles.nbytes + 24, [call] * CALLS)


def table_read_case(num_tokens: int) -> Case:
    """The locs of a prompt's new tokens."""
    table = rows_of(1).page_table
    positions = torch.arange(num_tokens, device=DEVICE).int()
    entries = table, torch.zeros_like(positions), positions
    return Case(
        "page_table_read",
        f"{num_tokens}",
        20 * num_tokens,
        [partial(read_page_table, *entries)] * CALLS,
        [partial(plain_read_page_table, *entries)] * CALLS,
    )


def inputs_case(given: Rows) -> Case:
    batch = len(given.rows)
    arguments = given.last_token, given.page_table, given.rows, given.seq_lens
    return Case(
        "decode_inputs",
        f"{batch}",
        32 * batch,
        [partial(decode_inputs, *arguments)] * CALLS,
        [partial(plain_decode_inputs, *arguments)] * CALLS,
    )


def take_case(given: Rows) -> Case:
    """A page for each sixteenth row, as on average, and one at least."""
    batch, num_writes = len(given.rows), -(-len(given.rows) // PAGE_SIZE) * PAGE_SIZE
    rings = rings_of(given, num_writes)
    taken = torch.empty_like(given.rows), torch.empty_like(given.seq_lens)
    copied = torch.empty_like(rings[0].steps[0], device=DEVICE)

    def plain(step: Tensor) -> None:
        """A copy of the step, then its write."""
        copied.copy_(step, non_blocking=True)
        writes = copied[STEP_HEAD + 2 * batch :].view(3, -1)[:, :num_writes]
        plain_scatter(given.page_table, *writes)

    return Case(
        "take_step",
        f"{batch}, {num_writes} written",
        4 + 16 * batch + 16 * num_writes,
        [
            partial(take_step, ring, *taken, given.page_table, max_writes=ring.max_writes)
            for ring in rings
        ],
        [partial(plain, step) for step in rings[0].steps],
    )


def give_case(given: Rows) -> Case:
    batch = len(given.rows)
    rings = rings_of(given, 0)
    token_ids = torch.arange(batch, device=DEVICE)
    is_broken = torch.zeros(batch, dtype=torch.bool, device=DEVICE)

    def plain(sampled: Tensor) -> None:
        ids = token_ids.int()
        sampled.copy_(ids.masked_fill(is_broken, -1), non_blocking=True)
        given.last_token[given.rows] = ids

    return Case(
        "give_sampled",
        f"{batch}",
        8 + 21 * batch,
        [
            partial(give_sampled, ring, given.rows, token_ids, is_broken, given.last_token)
            for ring in rings
        ],
        [partial(plain, sampled) for sampled in rings[0].sampled],
    )


def rings_of(given: Rows, num_writes: int) -> list[StepRing]:
    """One ring, of whose steps each has a turn of its own: no call finds what the last one read."""
    batch, max_writes = len(given.rows), len(given.rows) * PAGE_SIZE
    step_len = STEP_HEAD + 2 * batch + 3 * max_writes
    steps = torch.zeros(CALLS, step_len, dtype=torch.int32, pin_memory=ON_GPU)
    sampled = torch.zeros(CALLS, batch, dtype=torch.int32, pin_memory=ON_GPU)
    steps[:, 0] = num_writes
    steps[:, STEP_HEAD : STEP_HEAD + batch] = given.rows.cpu()
    steps[:, STEP_HEAD + batch : STEP_HEAD + 2 * batch] = given.seq_lens.cpu()
    entries = torch.randperm(given.page_table.numel())[: CALLS * num_writes]
    writes = steps[:, STEP_HEAD + 2 * batch :].view(CALLS, 3, max_writes)[:, :, :num_writes]
    writes[:, 0] = (entries // WIDTH).view(CALLS, num_writes)
    writes[:, 1] = (entries % WIDTH).view(CALLS, num_writes)
    turns = [torch.full((1,), turn, dtype=torch.int32, device=DEVICE) for turn in range(CALLS)]
    return [StepRing(steps, sampled, turn) for turn in turns]
