"""How long each row is as the executed plans left it. The books know it as the accepted plans will
leave it.
"""

from __future__ import annotations

import numpy as np

from servicekit.plan import Int32Array, Plan
from servicekit.table_digest import table_digest


class ExecutedRows:
    """Follows executed plans, for the digest alone."""

    def __init__(self, num_rows: int) -> None:
        self._lens: Int32Array = np.zeros(num_rows, dtype=np.int32)

    def apply(self, plan: Plan) -> None:
        """Take over what an executed plan did to rows."""
        if plan.reset_rows:
            self._lens[:] = 0
        self._lens[plan.close_rows] = 0
        for row in plan.open_rows:
            self._lens[row.table_idx] = 0
        self._lens[plan.step_rows] = plan.step_cached_lens + plan.step_extend_lens

    def digest(self, page_table: Int32Array) -> int:
        """`Result.table_digest` of the table [num_rows + 1, width] as it is now."""
        rows = np.flatnonzero(self._lens).astype(np.int32)
        return table_digest(page_table, rows, self._lens[rows])
