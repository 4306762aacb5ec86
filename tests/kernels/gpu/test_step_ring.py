"""A ring of decode steps in host memory: taken and answered in turn, beside the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu import step_ring as ours
from kernels.reference import step_ring as reference
from kernels.reference.step_ring import STEP_HEAD, StepRing

RING_LEN, MAX_ROWS, MAX_WRITES, WIDTH = 3, 40, 600, 64
DUMMY_ROW = 50


def make_ring(device: torch.device) -> StepRing:
    """Every step writes distinct entries; what no step has is a row of no table."""
    on_gpu = device.type == "cuda"
    step_len = STEP_HEAD + 2 * MAX_ROWS + 3 * MAX_WRITES
    steps = torch.full((RING_LEN, step_len), 10**6, dtype=torch.int32, pin_memory=on_gpu)
    sampled = torch.full((RING_LEN, MAX_ROWS), -1, dtype=torch.int32, pin_memory=on_gpu)
    for step in steps:
        step[STEP_HEAD : STEP_HEAD + MAX_ROWS] = torch.randperm(DUMMY_ROW)[:MAX_ROWS]
        step[STEP_HEAD + MAX_ROWS : STEP_HEAD + 2 * MAX_ROWS] = torch.randint(1, WIDTH, (MAX_ROWS,))
    return StepRing(steps, sampled, torch.zeros(1, dtype=torch.int32, device=device))


def put_write(step: Tensor, count: int) -> None:
    entries = torch.randperm(DUMMY_ROW * WIDTH)[:count]
    step[0] = count
    write = step[STEP_HEAD + 2 * MAX_ROWS :].view(3, MAX_WRITES)[:, :count]
    write[0], write[1] = entries // WIDTH, entries % WIDTH
    write[2] = torch.randint(2**30, (count,))


@pytest.mark.parametrize("batch", [1, 7, 40])
@pytest.mark.parametrize("counts", [(0, 16, 600), (255, 256, 257)])
def test_steps_are_taken_and_answered_in_turn(
    batch: int, counts: tuple[int, ...], device: torch.device
) -> None:
    ring = make_ring(device)
    for step, count in zip(ring.steps, counts, strict=True):
        put_write(step, count)
    twin = StepRing(ring.steps, ring.sampled.clone(), ring.turn.clone())
    state = [
        torch.zeros(DUMMY_ROW + 1, WIDTH, dtype=torch.int32, device=device),  # page table
        torch.full((DUMMY_ROW + 1,), -1, dtype=torch.int32, device=device),  # last tokens
        *torch.zeros(2, batch, dtype=torch.int32, device=device),  # rows, lengths
    ]
    expected = [tensor.clone() for tensor in state]
    for _ in range(RING_LEN + 1):
        token_ids = torch.randint(10**6, (batch,), device=device)
        is_broken = torch.rand(batch, device=device) < 0.3
        for module, (page_table, last_token, rows, seq_lens), answers in (
            (ours, state, ring),
            (reference, expected, twin),
        ):
            module.take_step(answers, rows, seq_lens, page_table, max_writes=MAX_WRITES)
            rows[batch // 2 :] = DUMMY_ROW  # padding
            module.give_sampled(answers, rows, token_ids, is_broken, last_token)
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert all(map(torch.equal, state, expected))
        assert torch.equal(ring.sampled, twin.sampled)
        assert ring.turn == twin.turn
    assert state[1][DUMMY_ROW] == -1
    assert (ring.sampled[:, batch:] == -1).all()
