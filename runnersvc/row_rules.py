"""What some rows' draws obey beside their sampling parameters: penalties, biases, ids held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.reference.logit_rules import Adjusted, LogitRules
from runnersvc.ops import Ops
from servicekit.arith import ceil_div
from servicekit.plan import BoolArray, Int32Array, Logprobs, RowOpen
from servicekit.sampling import MAX_BIASES

MAX_STOP_IDS = 512  # of a row
NO_LOGPROBS = -1  # in place of how many
_WORD_BITS = 32


class OpenedRules(NamedTuple):
    """Rules of rows that open, as int32 words: numpy arrays on the host, tensors on the device.
    Lists go with the rows that they are of and, where order counts, their place in the list.
    """

    opened: Int32Array  # [n] every row that opens
    rows: Int32Array  # [m] those with rules, as the next two
    factors: Int32Array  # [4m]: all repetition, then presence, frequency, min_p: bits of float32
    counts: Int32Array  # [4m]: all num_biases, then num_stop_ids, min_position, has_logprobs
    bias_rows: Int32Array
    bias_at: Int32Array
    bias_ids: Int32Array
    biases: Int32Array  # bits of float32
    stop_rows: Int32Array
    stop_at: Int32Array
    stop_ids: Int32Array
    prompt_rows: Int32Array
    prompt_ids: Int32Array
    output_rows: Int32Array
    output_ids: Int32Array  # each once a row
    output_counts: Int32Array  # how often it was sampled


class LogprobsWish(NamedTuple):
    """Which rows of a step want log probabilities."""

    samples: Int32Array  # [m] indexes among those that sample
    num_top: int  # of the row that wants most

    @property
    def words_a_row(self) -> int:
        return words_a_row(self.num_top)

    def read(self, words: Int32Array) -> Logprobs:
        """From what `RowRulesState.logprobs` left, on the host."""
        of_wanted = words[self.samples]
        chosen, top_ids, top = np.split(of_wanted, [1, 1 + self.num_top], axis=1)
        return Logprobs(self.samples, chosen[:, 0].view(np.float32), top_ids, top.view(np.float32))


def words_a_row(num_top: int) -> int:
    """Of the sampled token's logarithm, the likeliest ids, and theirs."""
    return 1 + 2 * num_top


def opened_rules(opens: Sequence[RowOpen]) -> OpenedRules:
    """What `RowRulesState.open` needs of rows that open."""
    ruled = [(row.table_idx, row.prompt_len, row.rules) for row in opens if row.rules is not None]
    of_row = [table_idx for table_idx, _, _ in ruled]
    rules = [one for _, _, one in ruled]
    factors = [
        [one.repetition_penalty for one in rules],
        [one.presence_penalty for one in rules],
        [one.frequency_penalty for one in rules],
        [one.min_p for one in rules],
    ]
    counts = [
        [len(one.bias_ids) for one in rules],
        [len(one.stop_token_ids) for one in rules],
        [prompt_len + one.min_tokens for _, prompt_len, one in ruled],
        [one.logprobs is not None for one in rules],
    ]
    prompts = [np.array(one.history_ids[:prompt_len]) for _, prompt_len, one in ruled]
    sampled = [
        np.unique(np.array(one.history_ids[prompt_len:], dtype=np.int32), return_counts=True)
        for _, prompt_len, one in ruled
    ]
    return OpenedRules(
        _ints([row.table_idx for row in opens]),
        _ints(of_row),
        _bits(factors),
        _ints(counts).ravel(),
        _repeated(of_row, [one.bias_ids for one in rules]),
        _joined([range(len(one.bias_ids)) for one in rules]),
        _joined([one.bias_ids for one in rules]),
        _bits([bias for one in rules for bias in one.biases]),
        _repeated(of_row, [one.stop_token_ids for one in rules]),
        _joined([range(len(one.stop_token_ids)) for one in rules]),
        _joined([one.stop_token_ids for one in rules]),
        _repeated(of_row, prompts),
        _joined(prompts),
        _repeated(of_row, [ids for ids, _ in sampled]),
        _joined([ids for ids, _ in sampled]),
        _joined([times for _, times in sampled]),
    )


class RowRulesState:
    """Owns the rules of all rows on the device, by table_idx, and knows on the host which have any.

    Of a vocabulary of V ids a row takes about 2.2 V bytes. The dummy row is last and has no rules.
    """

    def __init__(
        self, max_running_reqs: int, vocab_size: int, device: torch.device, ops: Ops
    ) -> None:
        rows = max_running_reqs + 1
        self._ops = ops
        self._ruled: BoolArray = np.zeros(rows, dtype=np.bool_)
        self._num_top: Int32Array = np.full(rows, NO_LOGPROBS, dtype=np.int32)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        self._min_p = floats(rows)
        self._has_logprobs = torch.zeros(rows, dtype=torch.bool, device=device)
        self._rules = LogitRules(
            is_active=torch.zeros(rows, dtype=torch.bool, device=device),
            repetition=floats(rows).fill_(1),
            presence=floats(rows),
            frequency=floats(rows),
            prompt_words=ints(rows, ceil_div(vocab_size, _WORD_BITS)),
            output_counts=torch.zeros(rows, vocab_size, dtype=torch.int16, device=device),
            bias_ids=ints(rows, MAX_BIASES),
            biases=floats(rows, MAX_BIASES),
            num_biases=ints(rows),
            stop_ids=ints(rows, MAX_STOP_IDS),
            num_stop_ids=ints(rows),
            min_position=ints(rows),
        )

    def of_any(self, rows: NDArray[np.integer[Any]]) -> bool:
        """Whether one of the rows has rules."""
        return bool(np.count_nonzero(self._ruled[rows]))

    def concern(self, opens: Sequence[RowOpen]) -> bool:
        """Whether `open` is to be called: a row that opens has rules, or had them when it was open
        before. Remembered; called once for the rows that a plan opens.
        """
        if not opens:
            return False
        rows = np.array([row.table_idx for row in opens])
        had = self.of_any(rows)
        self._ruled[rows] = [row.rules is not None for row in opens]
        self._num_top[rows] = [
            NO_LOGPROBS if row.rules is None or row.rules.logprobs is None else row.rules.logprobs
            for row in opens
        ]
        return had or self.of_any(rows)

    def open(self, *staged: Tensor) -> None:
        """Takes over the rules of opened rows, the fields of OpenedRules on the device."""
        (
            opened, rows, factors, counts, bias_rows, bias_at, bias_ids, biases,
            stop_rows, stop_at, stop_ids, prompt_rows, prompt_ids,
            output_rows, output_ids, output_counts,
        ) = staged  # fmt: skip
        rules = self._rules
        rules.is_active[opened] = False
        self._min_p[opened] = 0
        self._has_logprobs[opened] = False
        if len(rows) == 0:
            return
        repetition, presence, frequency, min_p = factors.view(torch.float32).view(4, -1)
        num_biases, num_stop_ids, min_position, has_logprobs = counts.view(4, -1)
        for field, values in (
            (rules.repetition, repetition),
            (rules.presence, presence),
            (rules.frequency, frequency),
            (self._min_p, min_p),
            (rules.num_biases, num_biases),
            (rules.num_stop_ids, num_stop_ids),
            (rules.min_position, min_position),
            (self._has_logprobs, has_logprobs.bool()),
        ):
            field[rows] = values
        rules.is_active[rows] = True
        rules.prompt_words[rows] = 0
        rules.output_counts[rows] = 0
        rules.bias_ids[bias_rows, bias_at] = bias_ids
        rules.biases[bias_rows, bias_at] = biases.view(torch.float32)
        rules.stop_ids[stop_rows, stop_at] = stop_ids
        if len(prompt_rows):
            self._ops.mark_prompt(rules.prompt_words, prompt_rows, prompt_ids)
        rules.output_counts[output_rows, output_ids] = output_counts.to(torch.int16)

    def adjusted(self, logits: Tensor, rows: Tensor, positions: Tensor) -> dict[str, Any]:
        """What `sample` is to be given for logits [S, vocab] of `rows` [S] whose next tokens come
        at `positions` [S].
        """
        adjusted = Adjusted(
            torch.empty(logits.shape, dtype=torch.float32, device=logits.device),
            torch.empty(len(rows), dtype=torch.bool, device=logits.device),
        )
        self._ops.adjust_logits(logits, adjusted, self._rules, rows, positions)
        return {"adjusted": adjusted, "min_p": self._min_p}

    def wish_of(self, rows: NDArray[np.integer[Any]]) -> LogprobsWish | None:
        """What sampling rows `rows` [S] want of log probabilities; None if none wants any."""
        wanted = self._num_top[rows]
        samples = np.flatnonzero(wanted != NO_LOGPROBS).astype(np.int32)
        return LogprobsWish(samples, int(wanted.max())) if len(samples) else None

    def logprobs(
        self, wish: LogprobsWish, logits: Tensor, rows: Tensor, token_ids: Tensor
    ) -> Tensor:
        """What `wish` is to be read from, int32 [S, words_a_row], for logits [S, vocab] as the
        model has them and the `token_ids` [S] sampled.
        """
        found = self._ops.logprobs(logits, token_ids, self._has_logprobs[rows], wish.num_top)
        chosen, top = (part.view(torch.int32) for part in (found.chosen, found.top))
        return torch.cat((chosen[:, None], found.top_ids.int(), top), dim=1)

    def count(self, rows: Tensor, token_ids: Tensor) -> None:
        """The `rows` [S], which are distinct, sampled these ids."""
        self._ops.count_output(self._rules.output_counts, rows, token_ids)


def _ints(numbers: object) -> Int32Array:
    return np.array(numbers, dtype=np.int32)


def _bits(numbers: object) -> Int32Array:
    return np.array(numbers, dtype=np.float32).ravel().view(np.int32)


def _joined(lists: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> Int32Array:
    return np.concatenate([_ints(one) for one in lists]) if lists else _ints([])


def _repeated(
    rows: Sequence[int], lists: Sequence[Sequence[int] | NDArray[np.integer[Any]]]
) -> Int32Array:
    return np.repeat(_ints(rows), [len(one) for one in lists]) if lists else _ints([])
