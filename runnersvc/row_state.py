"""What the device remembers of each running row between steps, beside its K and V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from servicekit.plan import Int32Array, RowOpen


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
    rows: Int32Array  # [n] table_idxs, as the others
    temperature: Int32Array  # the bits of float32
    top_k: Int32Array
    top_p: Int32Array  # the bits of float32
    choice: Int32Array


def opened_rows(opens: Sequence[RowOpen]) -> OpenedRows:
    """What `RowState.open` needs of them, for one copy to the device."""

    def words(name: str, dtype: type[np.generic]) -> Int32Array:
        return np.array([getattr(row, name) for row in opens], dtype=dtype).view(np.int32)

    return OpenedRows(
        words("seed", np.int64),
        words("table_idx", np.int32),
        words("temperature", np.float32),
        words("top_k", np.int32),
        words("top_p", np.float32),
        words("choice", np.int32),
    )


class RowState:
    """Owns a tensor for each field, by table_idx. The dummy row is last: greedy, never written."""

    def __init__(self, max_running_reqs: int, device: torch.device) -> None:
        rows = max_running_reqs + 1
        self.last_token = torch.zeros(rows, dtype=torch.int32, device=device)
        self.sampling = SamplingRows(
            temperature=torch.zeros(rows, dtype=torch.float32, device=device),
            top_k=torch.zeros(rows, dtype=torch.int32, device=device),
            top_p=torch.ones(rows, dtype=torch.float32, device=device),
            seed=torch.zeros(rows, dtype=torch.int64, device=device),
            choice=torch.zeros(rows, dtype=torch.int32, device=device),
        )

    def open(self, *staged: Tensor) -> None:
        """Takes over the sampling parameters of opened rows, the fields of OpenedRows on the
        device; 0 stands in for their last token.
        """
        seeds, rows, temperature, top_k, top_p, choice = staged
        if len(rows) == 0:
            return
        state = self.sampling
        state.seed[rows] = seeds.view(torch.int64)
        state.temperature[rows] = temperature.view(torch.float32)
        state.top_k[rows] = top_k
        state.top_p[rows] = top_p.view(torch.float32)
        state.choice[rows] = choice
        self.last_token[rows] = 0
