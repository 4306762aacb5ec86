"""What sessions are to hear of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from cachesvc.request import Admitted, Finished
from cachesvc.rows import RowIndexes, RowTable
from cachesvc.step import Sampled, StepRecord
from servicekit.plan import Logprobs


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities of one token, for the request that asked for them; after
    the Sampled that the token is in.
    """

    session_id: int
    key: int
    chosen: float
    top_ids: list[int]  # the likeliest, as many as the request asked for, best first
    top: list[float]


Output: TypeAlias = Sampled | TokenLogprobs | Admitted | Finished


def token_logprobs(
    record: StepRecord, taken: RowIndexes, rows: RowTable, logprobs: Logprobs
) -> Iterator[TokenLogprobs]:
    """Those of the rows `taken`, whose tokens were taken in."""
    kept = set(taken.tolist())
    row_of = record.sampling_rows[logprobs.samples].tolist()
    for idx, chosen, top_ids, top in zip(row_of, *logprobs[1:], strict=True):
        req = rows.req[idx]
        if idx not in kept or req is None:
            continue
        wanted = req.submission.sampling.logprobs
        yield TokenLogprobs(
            int(rows.session_id[idx]),
            int(rows.key[idx]),
            float(chosen),
            top_ids[:wanted].tolist(),
            top[:wanted].tolist(),
        )
