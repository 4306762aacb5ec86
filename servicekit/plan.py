"""A plan and its answers as both ends hold them: numpy arrays, no protobuf. The rules are those of
`runner.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32Array: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class RowRules:
    """What changes a row's logits before a token is drawn, or drops tokens after."""

    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()  # theirs
    min_tokens: int = 0  # before so many are sampled, none of the next
    stop_token_ids: tuple[int, ...] = ()
    history_ids: tuple[int, ...] = ()  # from position 0 on; only where a penalty needs them
    logprobs: int | None = None  # of so many likeliest tokens, and the sampled one; None: of none

    @property
    def has_penalty(self) -> bool:
        """Whether any of the three looks at what the row holds."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class RowOpen:
    """A row that starts to hold a request, with all that sampling needs of it."""

    table_idx: int
    prompt_len: int  # of the original prompt, also after a preemption
    temperature: float  # 0: greedy
    top_k: int  # 0: off
    top_p: float  # 1: off
    seed: int  # 64 bits, signed
    choice: int  # which of the answers to one prompt
    traceparent: str = ""  # W3C trace context of the request's caller; "": none
    rules: RowRules | None = None  # None: nothing beyond the above


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, applied in the order of the fields. Arrays named step_* are parallel, so are those
    named write_*.
    """

    manager_id: str
    plan_id: int
    acked_plan_id: int
    reset_rows: bool
    close_rows: Int32Array
    open_rows: tuple[RowOpen, ...]
    write_rows: Int32Array
    write_positions: Int32Array
    write_locs: Int32Array
    step_rows: Int32Array
    step_cached_lens: Int32Array
    step_extend_lens: Int32Array
    step_num_literals: (
        Int32Array  # extend_len: that many of literal_ids; 0: the token last sampled in the row
    )
    step_samples: BoolArray
    literal_ids: Int32Array
    want_digest: bool = False  # the result has a table_digest

    @property
    def only_decodes(self) -> bool:
        """There are rows, and each computes the token it sampled last, and samples again."""
        num_rows = len(self.step_rows)
        return (
            num_rows > 0
            and len(self.literal_ids) == 0
            and np.count_nonzero(self.step_samples) == num_rows
            and np.count_nonzero(self.step_extend_lens == 1) == num_rows
        )


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities, of m of a result's tokens."""

    samples: Int32Array  # [m]: which, among sampled_ids, in order
    chosen: NDArray[np.float32]  # [m]
    top_ids: Int32Array  # [m, num_top]: the likeliest, best first
    top: NDArray[np.float32]  # [m, num_top]


@dataclass(frozen=True, slots=True)
class Result:
    """What executing a plan gave."""

    plan_id: int
    sampled_ids: Int32Array  # one for each sampling row, in plan order
    waited_us: int  # the executor waited so long for the plan
    device_us: int  # execution of the step
    table_digest: int | None = None  # unsigned, 64 bits; None: the plan did not ask for it
    launch_us: int = 0  # handing the step to the device
    gap_us: int | None = None  # from the last kernel of the step before to the first; None: unknown
    from_graph: bool = False  # the step ran as a captured CUDA graph
    logprobs: Logprobs | None = None  # of the rows that asked for them


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan was not executed, in nothing of it."""

    plan_id: int
    reason: str  # a name of runner.proto's RefusalReason, without its prefix
    message: str
    named_rows: tuple[int, ...]
    last_accepted_plan_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Executing one of the plans `plan_id … last_plan_id` failed, and the runner ends."""

    plan_id: int
    message: str
    last_plan_id: int


@dataclass(frozen=True, slots=True)
class RunnerDescription:
    """What a plan may rely on; it does not change in a runner's life."""

    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    page_size: int
    num_pages: int
    num_rows: int
    max_seq_len: int
    vocab_size: int
    rank: int
    num_ranks: int
    max_step_tokens: int = 0  # 0: any

    @property
    def pool_tokens(self) -> int:
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class Attach:
    """The manager's first message on a stream."""

    protocol_version: int
    manager_id: str
    boot_id: str  # "": knows none
    last_result_plan_id: int | None
    model_fingerprint: str  # "": any


@dataclass(frozen=True, slots=True)
class Attached:
    """The runner's answer to Attach."""

    description: RunnerDescription
    boot_id: str
    last_executed: int
    last_manager_id: str  # "": none was executed
