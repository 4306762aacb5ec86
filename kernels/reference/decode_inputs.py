"""What rows that decode compute: the token that each sampled last, at its end."""

from __future__ import annotations

from torch import Tensor


def decode_inputs(
    last_token: Tensor, page_table: Tensor, rows: Tensor, seq_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows that decode compute: token ids int32 [B], positions int32 [B], out_locs int64 [B].

    `last_token` is int32, by table_idx, `page_table` int32 [max_running_reqs + 1, width], `rows`
    int32 [B] table_idxs, `seq_lens` int32 [B] >= 1 with the new token.
    """
    positions = seq_lens - 1
    return last_token[rows], positions, page_table[rows, positions].long()
