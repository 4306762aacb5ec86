"""Decode steps that wait in host memory: what the device takes from there, and what it answers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

STEP_HEAD = 4  # words before a step's rows; the first one counts its table write


class StepRing(NamedTuple):
    """As many steps as may be under way, taken in turn.

    `steps` [R, STEP_HEAD + 2 * max_rows + 3 * max_writes] has of each: how many entries of the page
    table it writes, its table_idxs, their lengths with the new token, then rows, positions and locs
    of the write, each part at its full length. `sampled` [R, max_rows] is what they sampled, and
    `turn` [1], on the device, the next one to take. All int32; the first two in pinned memory.
    """

    steps: Tensor
    sampled: Tensor
    turn: Tensor

    @property
    def max_rows(self) -> int:
        return self.sampled.shape[1]

    @property
    def max_writes(self) -> int:
        return (self.steps.shape[1] - STEP_HEAD - 2 * self.max_rows) // 3


def take_step(
    ring: StepRing, rows: Tensor, seq_lens: Tensor, page_table: Tensor, *, max_writes: int
) -> None:
    """Copies the next step's first B rows and lengths to `rows` and `seq_lens`, int32 [B], and
    writes its at most `max_writes` entries of `page_table`.
    """
    step = ring.steps[int(ring.turn)]
    batch, most, first_write = len(rows), ring.max_rows, STEP_HEAD + 2 * ring.max_rows
    rows.copy_(step[STEP_HEAD : STEP_HEAD + batch])
    seq_lens.copy_(step[STEP_HEAD + most : STEP_HEAD + most + batch])
    write = step[first_write:].view(3, ring.max_writes)[:, : int(step[0])].to(page_table.device)
    page_table[write[0], write[1]] = write[2]


def give_sampled(
    ring: StepRing, rows: Tensor, token_ids: Tensor, is_broken: Tensor, last_token: Tensor
) -> None:
    """Answers the step that was taken with the `token_ids` [B] that `rows` [B] sampled, but -1
    where `is_broken` bool [B], remembers the ids in `last_token` by table_idx, and passes the turn
    on.

    The last entry of `last_token` is the dummy row's and stays; no other row may come twice.
    """
    turn = int(ring.turn)
    ring.sampled[turn, : len(rows)] = token_ids.int().masked_fill(is_broken, -1)
    real = rows < len(last_token) - 1
    last_token[rows[real]] = token_ids[real].int()
    ring.turn.fill_((turn + 1) % len(ring.sampled))
