"""The memory of all requests: K and V by loc, and the page table that says which loc holds what."""

from __future__ import annotations

import torch
from torch import Tensor

from runnersvc.ops import Ops
from servicekit.arith import table_width


class KVCache:
    """Owns the KV buffer and the device page table, each with a dummy past the real ones.

    Every table entry is a loc at all times: one of the dummy page where no plan has written.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        page_size: int,
        max_running_reqs: int,
        max_seq_len: int,
        dtype: torch.dtype,
        device: torch.device,
        ops: Ops,
    ) -> None:
        self._ops = ops
        self.num_pages = num_pages
        self.page_size = page_size
        self.dummy_page_id = num_pages
        self.dummy_table_idx = max_running_reqs
        pages = (2, num_layers, num_pages + 1, page_size, num_kv_heads, head_dim)
        self.buffer = torch.zeros(pages, dtype=dtype, device=device)
        by_loc = self.buffer.view(
            2, num_layers, (num_pages + 1) * page_size, num_kv_heads, head_dim
        )
        self._k_by_layer, self._v_by_layer = by_loc[0].unbind(), by_loc[1].unbind()
        width = table_width(max_seq_len, page_size)
        offsets = torch.arange(width, dtype=torch.int32, device=device) % page_size
        self.page_table = (num_pages * page_size + offsets).repeat(max_running_reqs + 1, 1)

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """K and V by loc: views [(num_pages + 1) * page_size, num_kv_heads, head_dim]."""
        return self._k_by_layer[layer_idx], self._v_by_layer[layer_idx]

    def write_table(self, rows: Tensor, positions: Tensor, locs: Tensor) -> None:
        """Writes `page_table[rows[i], positions[i]] = locs[i]` in one scatter.

        The three are int32 [n] on the device; no (row, position) may come twice.
        """
        if len(rows):
            self._ops.scatter_page_table(self.page_table, rows, positions, locs)

    def check_integrity(self) -> None:
        """Asserts that every entry is a loc, and those of the dummy row are of the dummy page."""
        first_dummy_loc = self.dummy_page_id * self.page_size
        lowest, highest = int(self.page_table.min()), int(self.page_table.max())
        assert lowest >= 0, f"the page table holds {lowest = }"
        assert highest < first_dummy_loc + self.page_size, f"the page table holds {highest = }"
        lowest = int(self.page_table[self.dummy_table_idx].min())
        assert lowest >= first_dummy_loc, (
            f"the dummy row points at {lowest = }, below {first_dummy_loc = }"
        )
