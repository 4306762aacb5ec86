"""A step laid out: from a plan's arrays on the host to what a forward takes on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from runnersvc.ops import Ops
from runnersvc.step import Step
from servicekit.plan import Int32Array, Plan


class StepArrays(NamedTuple):
    """The T tokens of a step, the rows' tokens one after the other, and its S sampling rows. All
    int32: numpy arrays on the host, tensors on the device.

    Rows with one new token decode, the others prefill; `*_tokens` are indexes among the T.
    """

    token_rows: Int32Array  # [T] table_idxs
    positions: Int32Array  # [T]
    literal_tokens: Int32Array  # [L] tokens whose ids the plan has
    literal_ids: Int32Array  # [L]
    decode_rows: Int32Array  # [B] table_idxs
    decode_seq_lens: Int32Array  # [B] with the new token
    decode_tokens: Int32Array  # [B]
    prefill_rows: Int32Array  # [P] table_idxs
    prefill_cached_lens: Int32Array  # [P]
    prefill_extend_lens: Int32Array  # [P]
    prefill_tokens: Int32Array  # [sum of prefill_extend_lens]
    sampling_tokens: Int32Array  # [S] the last tokens of the rows that sample
    sampling_rows: Int32Array  # [S] table_idxs
    sampling_positions: Int32Array  # [S] where the sampled tokens will be


def step_arrays(plan: Plan) -> StepArrays:
    """The layout of a plan with at least one row."""
    rows, cached_lens, extend_lens = plan.step_rows, plan.step_cached_lens, plan.step_extend_lens
    ends = np.cumsum(extend_lens, dtype=np.int32)  # of each row, among the T tokens
    of_row = np.repeat(np.arange(len(ends)), extend_lens)  # [T] which row of the step
    seq_lens = cached_lens + extend_lens
    decodes, samples = extend_lens == 1, plan.step_samples
    return StepArrays(
        token_rows=rows[of_row],
        positions=np.arange(ends[-1], dtype=np.int32) + (seq_lens - ends)[of_row],
        literal_tokens=_true_at(plan.step_num_literals[of_row] > 0),
        literal_ids=plan.literal_ids,
        decode_rows=rows[decodes],
        decode_seq_lens=seq_lens[decodes],
        decode_tokens=_true_at(decodes[of_row]),
        prefill_rows=rows[~decodes],
        prefill_cached_lens=cached_lens[~decodes],
        prefill_extend_lens=extend_lens[~decodes],
        prefill_tokens=_true_at(~decodes[of_row]),
        sampling_tokens=ends[samples] - 1,
        sampling_rows=rows[samples],
        sampling_positions=seq_lens[samples],
    )


def step_of(staged: list[Tensor], last_token: Tensor, page_table: Tensor, ops: Ops) -> Step:
    """What a forward takes, from the fields of StepArrays on the device."""
    (
        token_rows, positions, literal_tokens, literal_ids,
        decode_rows, decode_seq_lens, decode_tokens,
        prefill_rows, prefill_cached_lens, prefill_extend_lens, prefill_tokens,
        sampling_tokens, _, _,
    ) = staged  # fmt: skip
    token_ids = last_token.index_select(0, token_rows)
    token_ids[literal_tokens] = literal_ids
    return Step(
        token_ids=token_ids,
        positions=positions,
        out_locs=ops.read_page_table(page_table, token_rows, positions),
        decode_rows=decode_rows,
        decode_seq_lens=decode_seq_lens,
        decode_tokens=decode_tokens if len(prefill_rows) else None,
        prefill_rows=prefill_rows,
        prefill_cached_lens=prefill_cached_lens,
        prefill_extend_lens=prefill_extend_lens,
        prefill_tokens=prefill_tokens if len(decode_rows) else None,
        sampling_tokens=sampling_tokens,
    )


def _true_at(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int32Array:
    return np.flatnonzero(mask).astype(np.int32)
