"""One tiny case of each kind: it is measured, and torch beside it computes the same."""

from __future__ import annotations

import json

import pytest
import torch

from bench.gpu.attention_cases import Load, Shape, World
from bench.gpu.attention_goals import decode_case, prefill_case
from bench.gpu.case import DEVICE, DTYPE, Case
from bench.gpu.elementwise_cases import gate_case, norm_case, rotary_case, scatter_case, store_case
from bench.gpu.kernels import measure
from bench.gpu.limits import MATMUL_FLOPS
from bench.gpu.linear_cases import Layers, linear_case, weights_of
from bench.gpu.linear_cases import Shape as LinearShape
from bench.gpu.results import record_kernels
from bench.gpu.sampler_cases import logprobs_case, rules_case, sample_case, sharp
from bench.gpu.step_cases import (
    decode_plan_case,
    give_case,
    inputs_case,
    prefill_plan_case,
    rows_of,
    table_read_case,
    take_case,
)

CEILINGS = {"read_gbps": 4000.0, "copy_gbps": 2000.0}
SMALL = Shape(64, 4, 2)


def world(lens: tuple[int, ...], cached_lens: tuple[int, ...] = (), page_size: int = 16) -> World:
    load = Load(f"{len(lens)}x{lens[0]}", lens, cached_lens)
    pool = torch.randn(1 << 17, device=DEVICE).to(DTYPE)
    return World(SMALL, load, pool, page_size=page_size, max_layers=1)


@pytest.mark.parametrize("page_size", [1, 16])
def test_decode_stands_beside_a_read_and_sdpa_of_the_same_bytes(page_size):
    rows = world((40, 40), page_size=page_size)
    case = decode_case(rows)
    entry = measure(case, CEILINGS)
    assert entry.keys() == {"name", "shape", "us", "gbps", "floor_us", "torch_us", "read_us"}
    assert entry["shape"] == "4/2 x 64, 2x40" + ("" if page_size == 16 else ", page 1")
    assert case.num_bytes == 2 * 40 * 2 * 2 * 64 * 2  # rows, positions, K and V, heads, width
    assert entry["floor_us"] == round(case.num_bytes / 4e6, 3)
    assert_same(rows, case)


def test_prefill_stands_beside_causal_sdpa_at_the_rate_of_matrix_products():
    rows = world((20, 20), (0, 0))
    case = prefill_case(rows)
    entry = measure(case, CEILINGS)
    assert entry.keys() == {"name", "shape", "us", "tflops", "floor_us", "torch_us"}
    assert case.flops == 4 * 4 * 64 * 2 * (20 * 21 / 2)  # heads, width, rows, what is seen
    assert entry["floor_us"] == round(case.flops / MATMUL_FLOPS * 1e6, 3)
    assert_same(rows, case)


def test_prefill_after_a_prefix_has_nothing_of_torch_beside_it():
    entry = measure(prefill_case(world((24, 24), (16, 16))), CEILINGS)
    assert entry.keys() == {"name", "shape", "us", "tflops", "floor_us"}


def assert_same(rows: World, case: Case) -> None:
    """Ours is in `out`, [T, H, D]; SDPA has [B, H, new tokens, D]."""
    rows.out.fill_(torch.nan)
    case.ours[-1]()
    sdpa = case.plain[-1]()
    assert isinstance(sdpa, torch.Tensor)
    ours, plain = rows.out.double(), sdpa.transpose(1, 2).reshape(rows.out.shape).double()
    assert (ours - plain).norm() <= 1e-2 * plain.norm()


@pytest.mark.parametrize("num_tokens", [1, 8])
@pytest.mark.parametrize("form", ["norm gated", "add"])
def test_products_of_few_tokens_stand_beside_cublas(num_tokens, form):
    shape = LinearShape("tiny", 64, 64, form)
    weights = weights_of(shape)
    entry = measure(linear_case(shape, num_tokens, weights), CEILINGS)
    assert entry.keys() == {"name", "shape", "us", "gbps", "floor_us", "torch_us"}
    assert entry["shape"] == f"tiny 64 x 64, {num_tokens} token" + ("s" if num_tokens > 1 else "")
    assert Layers(shape, num_tokens, weights).error() <= 1e-2


def test_what_a_step_does_once_is_measured():
    given = rows_of(2)
    cases = [case(given) for case in (inputs_case, take_case, give_case)]
    entries = [measure(case, CEILINGS) for case in (*cases, table_read_case(8))]
    assert all("torch_us" in entry for entry in entries)
    assert [entry["name"] for entry in entries] == [
        "decode_inputs",
        "take_step",
        "give_sampled",
        "page_table_read",
    ]
    for plan in (decode_plan_case(given), prefill_plan_case(8)):
        assert "torch_us" not in measure(plan, CEILINGS)


def test_a_step_is_taken_as_torch_copies_it():
    given = rows_of(2)
    case = take_case(given)
    tables = []
    for call in (case.ours[1], case.plain[1]):
        given.page_table.fill_(-1)
        call()
        tables.append(given.page_table.clone())
    ours, plain = tables
    assert torch.equal(ours, plain)
    assert (ours >= 0).sum() == 16  # one page for two rows


def test_elementwise_kernels_and_sampling_are_measured(tmp_path):
    logits = [sharp(2)]
    cases = [
        scatter_case(8),
        store_case(1),
        rotary_case("0.6B", 4, 1),
        norm_case(1, 64),
        gate_case(1, 64),
        sample_case("temperature", "sharp", logits),
        logprobs_case(logits, wanted=True),
        rules_case(logits, active=True),
    ]
    entries = [measure(case, CEILINGS) for case in cases]
    path = tmp_path / "h200.json"
    path.write_text('{"kernels": []}')
    record_kernels(path, CEILINGS, entries)
    results = json.loads(path.read_text())
    assert results["kernels"] == sorted(entries, key=lambda entry: entry["name"])
    assert results["copy_gbps"] == 2000.0
