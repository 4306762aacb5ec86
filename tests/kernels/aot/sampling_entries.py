"""The sampler, the rules before it and the log probabilities, at the vocabularies of two models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.gpu.logit_rules import adjust_logits
from kernels.gpu.logprobs import logprobs
from kernels.gpu.sampling import sample
from kernels.gpu.token_history import count_output, mark_prompt
from kernels.reference.logit_rules import Adjusted, LogitRules
from tests.kernels.aot.entry import Entry, Needs

WIDE = Needs(wide=True)
INTS = torch.zeros(2, dtype=torch.int32)
LONGS = torch.zeros(2, dtype=torch.int64)
FLOATS = torch.zeros(2)
FLAGS = torch.zeros(2, dtype=torch.bool)


def entries() -> Iterator[Entry]:
    for with_rules in (False, True):
        yield sampler_entry(151_936, torch.bfloat16, with_rules=with_rules)
    yield sampler_entry(49_152, torch.float32, with_rules=False)
    yield rules_entry(151_936, masked=False)
    yield rules_entry(151_936, masked=True)
    for num_top in (0, 20):
        yield logprobs_entry(151_936, num_top)
    yield Entry("history", history)


def sampler_entry(vocab: int, dtype: torch.dtype, *, with_rules: bool) -> Entry:
    def launch() -> None:
        sample(
            torch.zeros(2, vocab, dtype=dtype), FLOATS, INTS, FLOATS, LONGS, INTS, INTS, FLOATS,
            rows=LONGS, is_broken=FLAGS,
            adjusted=Adjusted(torch.zeros(2, vocab), FLAGS) if with_rules else None,
        )  # fmt: skip

    name = f"sampler {vocab} {dtype}" + (" with rules" if with_rules else "")
    needs = {"chunk_kernel": WIDE, "search_kernel": WIDE, "draw_kernel": Needs(max_registers=128)}
    return Entry(name, launch, needs)


def rules_entry(vocab: int, *, masked: bool) -> Entry:
    def launch() -> None:
        words, lists = torch.zeros(2, vocab // 32, dtype=torch.int32), torch.zeros(2, 4)
        rules = LogitRules(
            FLAGS, FLOATS, FLOATS, FLOATS, words, torch.zeros(2, vocab, dtype=torch.int16),
            lists.int(), lists, INTS, lists.int(), INTS, INTS,
        )  # fmt: skip
        adjusted = Adjusted(torch.zeros(2, vocab), FLAGS)
        masks = (words, FLAGS) if masked else ()
        adjust_logits(torch.zeros(2, vocab).bfloat16(), adjusted, rules, LONGS, INTS, *masks)

    return Entry("rules and mask" if masked else "rules", launch, {"rules_kernel": WIDE})


def logprobs_entry(vocab: int, num_top: int) -> Entry:
    def launch() -> None:
        logprobs(torch.zeros(2, vocab).bfloat16(), LONGS, FLAGS, num_top)

    return Entry(f"logprobs, top {num_top}", launch, {"best_kernel": WIDE})


def history() -> None:
    words, counts = torch.zeros(2, 9, dtype=torch.int32), torch.zeros(2, 99, dtype=torch.int16)
    mark_prompt(words, LONGS, LONGS)
    count_output(counts, LONGS, LONGS)
