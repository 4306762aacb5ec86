"""What one forward computes, laid out on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward computes: T tokens, the rows' tokens one after the other. All on the device.

    Rows with one new token decode, the others prefill. `*_tokens` say where a kind's tokens are
    among the T, in the order of its rows; None says that all tokens are of this kind.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    out_locs: Tensor  # [T] int64
    decode_rows: Tensor  # [B] table_idxs
    decode_seq_lens: Tensor  # [B] with the new token
    decode_tokens: Tensor | None  # [B]
    prefill_rows: Tensor  # [P] table_idxs
    prefill_cached_lens: Tensor  # [P]
    prefill_extend_lens: Tensor  # [P]
    prefill_tokens: Tensor | None  # [sum of prefill_extend_lens]
    sampling_tokens: Tensor | None  # [S] the last tokens of the rows that sample; None: all tokens
