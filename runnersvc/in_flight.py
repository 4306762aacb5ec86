"""What the host holds of a step that a CUDA device executes: pinned buffers, in a ring."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from runnersvc.executor import Executed
from runnersvc.row_rules import LogprobsWish, words_a_row
from servicekit.plan import Int32Array
from servicekit.sampling import MAX_LOGPROBS

IN_FLIGHT = 4  # steps at once: as many as a manager sends ahead of their results
RING_LEN = IN_FLIGHT + 1
STAGED_WORDS = 2**18  # of a step's arrays at first: 1 MiB
ALIGNED_WORDS = 4  # 16 bytes: Triton compiles a kernel again for pointers that are less aligned


class Sampled(NamedTuple):
    """What a step sampled, on the device."""

    ids: Tensor  # int32 [S]
    wish: LogprobsWish | None = None
    logprob_words: Tensor | None = None  # int32 [S, words_a_row]: what the wish is read from


class Flight:
    """One step on its way. `stage` may come first, then `begin`, one of the ends, and `wait`; that
    on any thread, in the order of the steps.
    """

    def __init__(self, ring: FlightRing, num_rows: int) -> None:
        self._ring = ring
        self._staging = torch.empty(STAGED_WORDS, dtype=torch.int32, pin_memory=True)
        self._sampled = torch.empty(num_rows, dtype=torch.int32, pin_memory=True)
        self._logprob_words = torch.empty(
            num_rows * words_a_row(MAX_LOGPROBS), dtype=torch.int32, pin_memory=True
        )
        self._began, self.ended = _event(), _event()

    def stage(self, arrays: Sequence[Int32Array]) -> list[Tensor]:
        """The int32 `arrays` on the device, each aligned to 16 bytes, by one copy. Once a step."""
        padded_lens = [-(-len(array) // ALIGNED_WORDS) * ALIGNED_WORDS for array in arrays]
        total_len = sum(padded_lens)
        if total_len > len(self._staging):
            self._staging = torch.empty(2 * total_len, dtype=torch.int32, pin_memory=True)
        words = self._staging.numpy()
        first = 0
        for array, padded_len in zip(arrays, padded_lens, strict=True):
            words[first : first + len(array)] = array
            first += padded_len
        staged = self._staging[:total_len].to(self._ring.device, non_blocking=True)
        parts = torch.split(staged, padded_lens)
        return [part[: len(array)] for part, array in zip(parts, arrays, strict=True)]

    def begin(self) -> None:
        """The next operation is the step's first."""
        self._before = self._ring.last
        self._began.record(self._ring.stream)

    def end(self, sampled: Sampled, *, from_graph: bool) -> None:
        """The step's last operation is enqueued; what it sampled comes to the host."""
        pinned = self._sampled[: len(sampled.ids)]
        pinned.copy_(sampled.ids, non_blocking=True)
        if sampled.logprob_words is not None:
            words = self._logprob_words[: sampled.logprob_words.numel()]
            words.copy_(sampled.logprob_words.flatten(), non_blocking=True)
        self._wish = sampled.wish
        self._end(pinned, from_graph=from_graph)

    def end_graph(self, pinned: Tensor) -> None:
        """The step's graph is enqueued, which puts what it samples into `pinned` int32 [n]."""
        self._wish = None
        self._end(pinned, from_graph=True)

    def _end(self, pinned: Tensor, *, from_graph: bool) -> None:
        self._result, self._from_graph = pinned, from_graph
        self.ended.record(self._ring.stream)
        self._ring.last = self

    def wait(self) -> Executed:
        """Return when the device is through; what was pinned may be used again."""
        self.ended.synchronize()
        sampled_ids: Int32Array = self._result.numpy().copy()
        device_us = round(self._began.elapsed_time(self.ended) * 1e3)
        gap_us = None
        if self._before is not None:
            gap_us = round(self._before.ended.elapsed_time(self._began) * 1e3)
        logprobs = None
        if self._wish is not None:
            count = len(sampled_ids) * self._wish.words_a_row
            words: Int32Array = self._logprob_words[:count].numpy().copy()
            logprobs = self._wish.read(words.reshape(len(sampled_ids), -1))
        self._ring.give_back(self)
        return Executed(sampled_ids, device_us, gap_us, self._from_graph, logprobs)


class FlightRing:
    """IN_FLIGHT flights, and one more, for steps of at most `num_rows` sampling rows, on the stream
    that is current when it is made. A step is enqueued by one thread at a time.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.current_stream(device)
        self.last: Flight | None = None  # the step enqueued last
        self._waited: Flight | None = None
        self._free: queue.SimpleQueue[Flight] = queue.SimpleQueue()
        for _ in range(RING_LEN):
            self._free.put(Flight(self, num_rows))

    def take(self) -> Flight:
        """A free one; blocks while as many as there are have not been waited for."""
        return self._free.get()

    def give_back(self, flight: Flight) -> None:
        """It is free when the next one has been waited for, which reads when this one ended."""
        if self._waited is not None:
            self._free.put(self._waited)
        self._waited = flight


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
