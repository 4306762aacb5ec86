"""Whether an answer is clear: at each of its tokens the reference's own choice is the same, and far
enough from any other that rounding would not decide. For drawn tokens too: a draw is a point on the
line of summed probabilities, and must lie inside its token's stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pagewire.v1 import sampling_pb2

from kernels.reference.sampling import uniform
from tests.e2e.tiny_model import MIN_GAP, reference_model

MIN_PROBABILITY = 1e-5  # between a draw and either end of its token's stretch


def unclear_at(
    model_dir: Path,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    sampling: sampling_pb2.SamplingParams,
    choice: int = 0,
) -> int | None:
    """The first token of the answer that is unclear, or is another one in transformers; None where
    all are clear. Of sampling it knows temperature and seed.
    """
    if not answer_ids:
        return None
    model = reference_model(model_dir)
    with torch.inference_mode():
        ids = torch.tensor([[*prompt_ids, *answer_ids]])
        logits = model(ids).logits[0, len(prompt_ids) - 1 : -1].double()
    chosen = torch.tensor(answer_ids)[:, None]
    if sampling.temperature == 0:
        others = logits.scatter(1, chosen, -torch.inf)
        is_clear = logits.gather(1, chosen)[:, 0] - others.amax(dim=1) >= MIN_GAP
    else:
        ends = (logits / sampling.temperature).softmax(dim=1).cumsum(dim=1)
        upper = ends.gather(1, chosen)[:, 0]
        lower = upper - (logits / sampling.temperature).softmax(dim=1).gather(1, chosen)[:, 0]
        positions = torch.arange(len(prompt_ids), len(prompt_ids) + len(answer_ids))
        seeds = torch.full_like(positions, sampling.seed)
        drawn = uniform(seeds, torch.full_like(positions, choice), positions).double()
        is_clear = (drawn - lower >= MIN_PROBABILITY) & (upper - drawn >= MIN_PROBABILITY)
    return None if bool(is_clear.all()) else int((~is_clear).nonzero()[0, 0])
