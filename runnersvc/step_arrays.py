"""A step laid out: from a plan's arrays on the host to what a forward takes on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runnersvc.ops import Ops
from runnersvc.step import Step
from servicekit.plan import Int32Array, Plan


class StepArrays(NamedTuple):
    """A step whose first B tokens are those of rows that decode the token they sampled last, and
    whose other L tokens are literal, of P rows that prefill. All int32: numpy arrays on the host,
    tensors on the device.
    """

    decode_rows: Int32Array  # [B] table_idxs
    decode_seq_lens: Int32Array  # [B] with the new token
    literal_rows: Int32Array  # [L] table_idxs
    literal_positions: Int32Array  # [L]
    literal_ids: Int32Array  # [L]
    prefill_rows: Int32Array  # [P] table_idxs
    prefill_cached_lens: Int32Array  # [P]
    prefill_extend_lens: Int32Array  # [P]


class SamplingArrays(NamedTuple):
    """Rows that sample, in the order of the plan. All int32 [S]."""

    tokens: Int32Array  # their last ones, among those of the step
    rows: Int32Array  # table_idxs
    positions: Int32Array  # where the sampled tokens will be


def step_arrays(plan: Plan) -> tuple[StepArrays, SamplingArrays]:
    """The layout of a plan with at least one row."""
    rows, cached_lens, extend_lens = plan.step_rows, plan.step_cached_lens, plan.step_extend_lens
    seq_lens = cached_lens + extend_lens
    decodes = plan.step_num_literals == 0
    of_prefill = ~decodes
    rows_p, extend_p, lens_p = rows[of_prefill], extend_lens[of_prefill], seq_lens[of_prefill]
    ends_p = np.cumsum(extend_p, dtype=np.int32)  # of each row, among the literal tokens
    of_row = np.repeat(np.arange(len(rows_p)), extend_p)  # [L] which row that prefills
    num_decodes = len(rows) - len(rows_p)
    last_tokens = np.empty(len(rows), dtype=np.int32)
    last_tokens[decodes] = np.arange(num_decodes, dtype=np.int32)
    last_tokens[of_prefill] = num_decodes + ends_p - 1
    samples = plan.step_samples
    return StepArrays(
        decode_rows=rows[decodes],
        decode_seq_lens=seq_lens[decodes],
        literal_rows=rows_p[of_row],
        literal_positions=np.arange(len(of_row), dtype=np.int32) + (lens_p - ends_p)[of_row],
        literal_ids=plan.literal_ids,
        prefill_rows=rows_p,
        prefill_cached_lens=cached_lens[of_prefill],
        prefill_extend_lens=extend_p,
    ), SamplingArrays(last_tokens[samples], rows[samples], seq_lens[samples])


def step_of(
    staged: Sequence[Tensor],
    last_token: Tensor,
    page_table: Tensor,
    ops: Ops,
    attended: Tensor | None = None,
) -> Step:
    """What a forward takes, from the fields of StepArrays on the device."""
    (
        decode_rows, decode_seq_lens, literal_rows, literal_positions, literal_ids,
        prefill_rows, prefill_cached_lens, prefill_extend_lens,
    ) = staged  # fmt: skip
    parts = []
    if len(decode_rows):
        parts.append(ops.decode_inputs(last_token, page_table, decode_rows, decode_seq_lens))
    if len(literal_rows):
        literal_locs = ops.read_page_table(page_table, literal_rows, literal_positions)
        parts.append((literal_ids, literal_positions, literal_locs))
    token_ids, positions, out_locs = (
        parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    )
    return Step(
        token_ids=token_ids,
        positions=positions,
        out_locs=out_locs,
        decode_rows=decode_rows,
        decode_seq_lens=decode_seq_lens,
        prefill_rows=prefill_rows,
        prefill_cached_lens=prefill_cached_lens,
        prefill_extend_lens=prefill_extend_lens,
        attended=attended,
    )
