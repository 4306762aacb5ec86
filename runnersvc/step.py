"""What one forward computes, laid out on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward computes: T tokens, first one of each row that decodes, then those of the
    rows that prefill, row after row. All on the device.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    out_locs: Tensor  # [T] int64
    decode_rows: Tensor  # [B] table_idxs
    decode_seq_lens: Tensor  # [B] with the new token
    prefill_rows: Tensor  # [P] table_idxs
    prefill_cached_lens: Tensor  # [P]
    prefill_extend_lens: Tensor  # [P], T - B together, or less: then tokens of padding come last
    attended: Tensor | None = None  # [T, num_heads, head_dim] for attention to fill; None: any
