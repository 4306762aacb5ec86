"""Sampling, rules and log probabilities over Qwen3's vocabulary, beside plain torch.

Logits of two kinds: `sharp` as a trained model's, a few tokens far above the others; `flat` as
random weights give, where top-p keeps tens of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gpu.case import DEVICE, ON_GPU, Case, rotations
from kernels.gpu.logit_rules import adjust_logits
from kernels.gpu.logprobs import logprobs
from kernels.gpu.sampling import sample
from kernels.reference.logit_rules import Adjusted, LogitRules

VOCAB = 151_936 if ON_GPU else 3000
BATCHES = (1, 32, 256) if ON_GPU else (2,)
KINDS = {  # temperature, top_k, top_p, min_p
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.6, 0, 1.0, 0.0),
    "top_k": (0.6, 20, 1.0, 0.0),
    "top_p": (0.6, 0, 0.95, 0.0),
    "top_k_top_p": (0.6, 20, 0.95, 0.0),
    "min_p": (0.6, 0, 1.0, 0.05),
}


def sampler_cases() -> Iterator[Case]:
    for num_rows in BATCHES:
        logits = {
            "sharp": [sharp(num_rows) for _ in range(rotations(2 * num_rows * VOCAB))],
            "flat": [flat(num_rows) for _ in range(rotations(2 * num_rows * VOCAB))],
        }
        for kind in KINDS:
            for shape, sets in logits.items():
                if shape == "sharp" or kind in ("temperature", "top_p"):
                    yield sample_case(kind, shape, sets)
        yield logprobs_case(logits["sharp"], wanted=False)
        yield logprobs_case(logits["sharp"], wanted=True)
        yield rules_case(logits["sharp"], active=False)
        yield rules_case(logits["sharp"], active=True)


def flat(num_rows: int) -> Tensor:
    return torch.randn(num_rows, VOCAB, device=DEVICE).bfloat16()


def sharp(num_rows: int) -> Tensor:
    """Normal logits of deviation 2.5, and twenty of each row raised by up to 12."""
    logits = torch.randn(num_rows, VOCAB, device=DEVICE) * 2.5
    raised = torch.randint(VOCAB, (num_rows, 20), device=DEVICE)
    logits.scatter_add_(1, raised, torch.rand(num_rows, 20, device=DEVICE) * 12)
    return logits.bfloat16()


def sample_case(kind: str, shape: str, sets: list[Tensor]) -> Case:
    num_rows = len(sets[0])
    temperature, top_k, top_p, min_p = KINDS[kind]

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=DEVICE)

    n = torch.arange(num_rows, device=DEVICE)
    columns = (
        column(temperature, torch.float32), column(top_k, torch.int32),
        column(top_p, torch.float32), n * 7919, column(0, torch.int32), n.int(),
        column(min_p, torch.float32),
    )  # fmt: skip
    return Case(
        f"sample_{kind}", f"{num_rows} x {VOCAB} {shape}", 2 * num_rows * VOCAB,
        [lambda s=s: sample(s, *columns) for s in sets],
        [lambda s=s: plain_sample(s, temperature, top_k, top_p, min_p) for s in sets],
        reads_only=True,
    )  # fmt: skip


def plain_sample(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """As engines do it in torch, for a batch of one kind: a sort, and a race of exponentials."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    probs = (logits.float() / temperature).softmax(dim=-1)
    if min_p > 0:
        probs = torch.where(probs < min_p * probs.amax(dim=-1, keepdim=True), 0, probs)
    if top_k == 0 and top_p == 1:
        return (probs / torch.empty_like(probs).exponential_()).argmax(dim=-1)
    ordered, ids = probs.sort(dim=-1, descending=True)
    if top_k > 0:
        ordered[:, top_k:] = 0
    running = ordered.cumsum(dim=-1)
    ordered = torch.where(running - ordered > top_p * running[:, -1:], 0, ordered)
    drawn = (ordered / torch.empty_like(ordered).exponential_()).argmax(dim=-1, keepdim=True)
    return ids.gather(1, drawn)


def logprobs_case(sets: list[Tensor], *, wanted: bool) -> Case:
    num_rows = len(sets[0])
    ids = torch.randint(VOCAB, (num_rows,), device=DEVICE)
    flags = torch.full((num_rows,), wanted, device=DEVICE)
    return Case(
        "logprobs_top_20", f"{num_rows} x {VOCAB} {'all' if wanted else 'none'} wanted",
        2 * num_rows * VOCAB if wanted else num_rows,
        [lambda s=s: logprobs(s, ids, flags, 20) for s in sets],
        [lambda s=s: s.float().log_softmax(dim=-1).topk(20) for s in sets] if wanted else [],
        reads_only=True,
    )  # fmt: skip


def rules_case(sets: list[Tensor], *, active: bool) -> Case:
    num_rows, width = len(sets[0]), (VOCAB + 31) // 32
    floats, ints = torch.rand(num_rows, device=DEVICE), torch.ones(num_rows, device=DEVICE).int()
    ids = torch.randint(VOCAB, (num_rows, 8), device=DEVICE).int()
    words = torch.randint(-(2**31), 2**31, (num_rows, width), device=DEVICE).int()
    counts = torch.randint(0, 3, (num_rows, VOCAB), device=DEVICE).short()
    flags = torch.full((num_rows,), active, device=DEVICE)
    rules = LogitRules(
        flags, floats + 0.5, floats, floats, words, counts, ids, torch.rand(num_rows, 8).to(DEVICE),
        ints * 8, ids, ints * 8, ints * 9,
    )  # fmt: skip
    adjusted = Adjusted(torch.rand(num_rows, VOCAB, device=DEVICE), flags.clone())
    rows = torch.arange(num_rows, device=DEVICE)
    return Case(
        "logit_rules", f"{num_rows} x {VOCAB} {'all' if active else 'none'} active",
        num_rows * (8 * VOCAB + 4 * width) if active else 2 * num_rows,
        [lambda s=s: adjust_logits(s, adjusted, rules, rows, ints) for s in sets],
    )  # fmt: skip
