"""What the device remembers of each running row between steps, beside its K and V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from servicekit.arith import align_up
from servicekit.plan import Int32Array, RowOpen

_NOTHING: Int32Array = np.zeros(0, dtype=np.int32)
_ALIGNED_WORDS = 4  # 16 bytes, as kernels want pointers


class SamplingRows(NamedTuple):
    """The sampling parameters of all rows, each by table_idx."""

    temperature: Tensor  # float32
    top_k: Tensor  # int32
    top_p: Tensor  # float32
    seed: Tensor  # int64
    choice: Tensor  # int32


class OpenedRows(NamedTuple):
    """Rows that open, as int32 words: numpy arrays on the host, tensors on the device."""

    seeds: Int32Array  # [2n]: the 64 bits of each
    rows: Int32Array  # [n] table_idxs
    words: Int32Array  # [5n]: all temperatures, then top_k, top_p, choice, last token; floats' bits


def opened_rows(opens: Sequence[RowOpen]) -> OpenedRows:
    """What `RowState.open` needs of them, for one copy to the device."""
    if not opens:
        return OpenedRows(_NOTHING, _NOTHING, _NOTHING)
    words = np.zeros((5, len(opens)), dtype=np.int32)
    words[0] = np.array([row.temperature for row in opens], dtype=np.float32).view(np.int32)
    words[1] = [row.top_k for row in opens]
    words[2] = np.array([row.top_p for row in opens], dtype=np.float32).view(np.int32)
    words[3] = [row.choice for row in opens]
    return OpenedRows(
        np.array([row.seed for row in opens], dtype=np.int64).view(np.int32),
        np.array([row.table_idx for row in opens], dtype=np.int32),
        words.ravel(),
    )


class RowState:
    """Owns what there is of each row, by table_idx. The dummy row is last: greedy, never written.

    The five 32-bit fields are rows of one tensor, so that opening rows is two operations.
    """

    def __init__(self, max_running_reqs: int, device: torch.device) -> None:
        rows = max_running_reqs + 1
        width = align_up(rows, _ALIGNED_WORDS)
        self._words = torch.zeros(5, width, dtype=torch.int32, device=device)
        temperature, top_k, top_p, choice, last_token = self._words[:, :rows].unbind()
        self.last_token = last_token
        self.sampling = SamplingRows(
            temperature=temperature.view(torch.float32),
            top_k=top_k,
            top_p=top_p.view(torch.float32).fill_(1),
            seed=torch.zeros(rows, dtype=torch.int64, device=device),
            choice=choice,
        )

    def open(self, *staged: Tensor) -> None:
        """Takes over the sampling parameters of opened rows, the fields of OpenedRows on the
        device; 0 stands in for their last token.
        """
        seeds, rows, words = staged
        if len(rows):
            self.sampling.seed[rows] = seeds.view(torch.int64)
            self._words[:, rows] = words.view(5, -1)
