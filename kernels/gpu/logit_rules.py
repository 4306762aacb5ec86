"""What changes the logits of a row before a token is drawn: penalties, biases, ids ruled out."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import OVERLAP, begin_program
from kernels.reference.logit_rules import Adjusted, LogitRules

BLOCK_V = 2048  # ids a program


def adjust_logits(
    logits: Tensor,
    adjusted: Adjusted,
    rules: LogitRules,
    rows: Tensor,
    position: Tensor,
    allowed_words: Tensor | None = None,
    is_masked: Tensor | None = None,
) -> None:
    """Fills `adjusted` from `logits` [N, vocab]; row i is that of table_idx `rows[i]`.

    The order: repetition (Keskar et al. 2019, arXiv:1909.05858), of the ids of prompt and output;
    frequency and presence, of the output; biases; then what is impossible becomes -inf: stop ids
    where `position` [N], that of the token to draw, is below `min_position`, and ids whose bit in
    `allowed_words` int32 [N, ceil(vocab / 32)] is 0, in the rows that `is_masked` [N] names. Both
    or neither of the last two are given. All tensors are contiguous. A row without a rule costs
    the reading of its two flags.
    """
    num_rows, vocab = logits.shape
    assert (allowed_words is None) == (is_masked is None)
    for tensor in (logits, *adjusted, *rules):
        assert tensor.is_contiguous()
    if num_rows:
        rules_kernel[(triton.cdiv(vocab, BLOCK_V), num_rows)](
            logits, *adjusted, *rules, rows, position, allowed_words, is_masked,
            vocab, rules.bias_ids.shape[1], rules.stop_ids.shape[1], BLOCK_V, num_warps=4,
            **OVERLAP,
        )  # fmt: skip


@triton.jit
def rules_kernel(
    logits,
    adjusted,
    is_used,
    is_active,
    repetition,
    presence,
    frequency,
    prompt_words,
    output_counts,
    bias_ids,
    biases,
    num_biases,
    stop_ids,
    num_stop_ids,
    min_position,
    rows,
    position,
    allowed_words,
    is_masked,
    VOCAB: tl.constexpr,
    MOST_BIASES: tl.constexpr,
    MOST_STOP_IDS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Program (chunk, row) adjusts BLOCK_V logits of a row, or none."""
    begin_program()
    NUM_WORDS: tl.constexpr = (VOCAB + 31) // 32
    row = tl.program_id(1).to(tl.int64)
    state = tl.load(rows + row).to(tl.int64)
    active = tl.load(is_active + state) != 0
    masked = active & False
    if is_masked is not None:
        masked = tl.load(is_masked + row) != 0
    if tl.program_id(0) == 0:
        tl.store(is_used + row, active | masked)
    if active | masked:
        ids = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        mask = ids < VOCAB
        x = tl.load(logits + row * VOCAB + ids, mask=mask, other=0).to(tl.float32)
        if active:
            count = tl.load(output_counts + state * VOCAB + ids, mask=mask, other=0)
            count = count.to(tl.float32)
            word = tl.load(prompt_words + state * NUM_WORDS + ids // 32, mask=mask, other=0)
            seen = ((word >> (ids % 32)) & 1) != 0
            factor = tl.load(repetition + state)
            x = tl.where(seen | (count > 0), tl.where(x > 0, x / factor, x * factor), x)
            x -= tl.load(frequency + state) * count
            x -= tl.where(count > 0, tl.load(presence + state), 0.0)
            for i in range(tl.load(num_biases + state)):
                biased = tl.load(bias_ids + state * MOST_BIASES + i)
                x += tl.where(ids == biased, tl.load(biases + state * MOST_BIASES + i), 0.0)
            if tl.load(position + row) < tl.load(min_position + state):
                for i in range(tl.load(num_stop_ids + state)):
                    stop = tl.load(stop_ids + state * MOST_STOP_IDS + i)
                    x = tl.where(ids == stop, float("-inf"), x)
        if is_masked is not None:  # noqa: SIM102  known when compiling, the flag when running
            if masked:
                word = tl.load(allowed_words + row * NUM_WORDS + ids // 32, mask=mask, other=0)
                x = tl.where(((word >> (ids % 32)) & 1) != 0, x, float("-inf"))
        tl.store(adjusted + row * VOCAB + ids, x, mask=mask)
