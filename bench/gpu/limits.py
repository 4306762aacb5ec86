"""How fast an H200 could serve a workload at most: the column `limit` of the project's goals.

An ideal server runs all requests from the start: their prompts first, then one decode step after
another, with whoever is not finished. The time is the sum of three, nothing overlaps, and all else
(norms, rotary, sampling, launches, gaps) is free.

    prefill   flops of linear layers and causal attention, at MATMUL_FLOPS
    KV        bytes of K and V that decode steps read, at the measured read bandwidth; what requests
              have in common is read once a step
    GEMMs     weights of each decode step, as cuBLAS runs them in a CUDA graph

That last part is an approximation. Up to SKINNY_ROWS the weights are read at full bandwidth, as
kernels made for few rows can. Beyond, a GEMM takes what was measured in graphs of Qwen3-0.6B (0.71
to 0.87 ms a step, whatever the rows) and 14B (7.1 ms at one row, 11.6 at 256), with a straight line
between: the weights at WEIGHT_READ_SHARE of the bandwidth plus EXPOSED_FLOPS of the arithmetic, and
never less than LEAST_GEMM_S. With 4,557 GB/s this gives offline 32.7k tokens/s for 0.6B and 7.0k
for 14B, `single` 0.28 ms a token and `prefill2k` 0.18 s; the goals were set with 32.4k, 7.0k, 0.3
and 0.20. GEMMs without overhead, at the larger of bytes and flops, would give 38.2k and 8.3k.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.gpu.workloads import Workload
from runnersvc.families import ModelSpec

MATMUL_FLOPS = 790e12  # a second: measured, products of large bfloat16 matrices on an H200
READ_GBPS = 4557.0  # where none is measured
ITEM_BYTES = 2  # bfloat16
SKINNY_ROWS = 16
WEIGHT_READ_SHARE = 0.82
EXPOSED_FLOPS = 0.53
LEAST_GEMM_S = 7e-6


class Limit(NamedTuple):
    """The parts of the time, and what they come to."""

    prefill_s: float
    kv_s: float
    gemm_s: float
    tok_s: float  # sampled tokens a second


def limit(workload: Workload, spec: ModelSpec, read_gbps: float) -> Limit:
    """The limit of a workload whose common prefix is cached, if it has one."""
    read_bytes_s = read_gbps * 1e9
    prefill_s = _prefill_flops(workload, spec) / MATMUL_FLOPS
    kv_s = _kv_tokens_read(workload) * kv_bytes_of_token(spec) / read_bytes_s
    rows_of_steps = decode_rows(workload)
    seconds_of = {rows: _gemms_s(spec, rows, read_bytes_s) for rows in set(rows_of_steps)}
    gemm_s = sum(seconds_of[rows] for rows in rows_of_steps)
    return Limit(prefill_s, kv_s, gemm_s, workload.output_tokens / (prefill_s + kv_s + gemm_s))


def kv_bytes_of_token(spec: ModelSpec) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * ITEM_BYTES


def decode_rows(workload: Workload) -> list[int]:
    """Rows of each decode step: the first token comes from the prompt's own step."""
    lens = [request.max_tokens for request in workload.requests]
    return [sum(length > step for length in lens) for step in range(1, max(lens))]


def _kv_tokens_read(workload: Workload) -> int:
    """Summed over decode steps. The step that samples token t + 1 reads prompt and t tokens."""
    total = 0
    for prompt_ids, max_tokens in workload.requests:
        steps = max_tokens - 1
        own_len = len(prompt_ids) - workload.common_len
        total += steps * own_len + steps * (steps + 1) // 2
    return total + workload.common_len * len(decode_rows(workload))


def _prefill_flops(workload: Workload, spec: ModelSpec) -> float:
    """Of what is not cached: layers for each token, attention over all before it, one head."""
    layer_params = spec.num_layers * sum(a * b for a, b in _layer_shapes(spec))
    flops = 0.0
    for prompt_ids, _ in workload.requests:
        length, cached = len(prompt_ids), workload.common_len
        seen = (length**2 - cached**2) / 2
        flops += 2 * layer_params * (length - cached)
        flops += 4 * spec.num_layers * spec.num_heads * spec.head_dim * seen
        flops += 2 * spec.hidden_dim * spec.vocab_size
    return flops


def _gemms_s(spec: ModelSpec, rows: int, read_bytes_s: float) -> float:
    """All matrix products of one decode step."""
    layers = sum(_gemm_s(a * b, rows, read_bytes_s) for a, b in _layer_shapes(spec))
    head = _gemm_s(spec.hidden_dim * spec.vocab_size, rows, read_bytes_s)
    return spec.num_layers * layers + head


def _gemm_s(params: int, rows: int, read_bytes_s: float) -> float:
    bytes_s = ITEM_BYTES * params / read_bytes_s
    if rows <= SKINNY_ROWS:
        return bytes_s
    flops_s = 2 * params * rows / MATMUL_FLOPS
    as_measured = bytes_s / WEIGHT_READ_SHARE + EXPOSED_FLOPS * flops_s
    return max(as_measured, flops_s, LEAST_GEMM_S)


def _layer_shapes(spec: ModelSpec) -> list[tuple[int, int]]:
    """Input and output widths of a layer's four matrices; Q, K and V are one, gate and up too."""
    heads = spec.num_heads * spec.head_dim
    qkv = heads + 2 * spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_dim, spec.intermediate_dim
    return [(hidden, qkv), (heads, hidden), (hidden, 2 * inner), (inner, hidden)]
