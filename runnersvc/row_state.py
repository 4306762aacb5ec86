"""What the device remembers of each running row between steps, beside its K and V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from servicekit.plan import RowOpen


class SamplingRows(NamedTuple):
    """The sampling parameters of some rows, each [n]."""

    temperature: Tensor  # float32
    top_k: Tensor  # int32
    top_p: Tensor  # float32
    seed: Tensor  # int64
    choice: Tensor  # int32


class RowState:
    """Owns a tensor for each field, by table_idx. The dummy row is last: greedy, never written."""

    def __init__(self, max_running_reqs: int, device: torch.device) -> None:
        rows = max_running_reqs + 1
        self._device = device
        self.last_token = torch.zeros(rows, dtype=torch.int32, device=device)
        self._fields = SamplingRows(
            temperature=torch.zeros(rows, dtype=torch.float32, device=device),
            top_k=torch.zeros(rows, dtype=torch.int32, device=device),
            top_p=torch.ones(rows, dtype=torch.float32, device=device),
            seed=torch.zeros(rows, dtype=torch.int64, device=device),
            choice=torch.zeros(rows, dtype=torch.int32, device=device),
        )

    def open(self, opens: Sequence[RowOpen]) -> None:
        """Takes over the sampling parameters of opened rows; 0 stands in for their last token."""
        if not opens:
            return
        rows = torch.tensor([row.table_idx for row in opens], device=self._device)
        for name, field in self._fields._asdict().items():
            given = [getattr(row, name) for row in opens]
            field[rows] = torch.tensor(given, dtype=field.dtype, device=self._device)
        self.last_token[rows] = 0

    def sampling(self, rows: Tensor) -> SamplingRows:
        """The sampling parameters of `rows` [n]."""
        return SamplingRows(*(field.index_select(0, rows) for field in self._fields))

    def set_last_token(self, rows: Tensor, token_ids: Tensor) -> None:
        """Remembers the ids [n] just sampled in `rows` [n], which are distinct."""
        self.last_token[rows] = token_ids.int()
