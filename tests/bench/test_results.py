"""What is kept of the figures, and what is drawn of them."""

from __future__ import annotations

import json

import pytest

from bench.gpu.results import record_workloads
from bench.gpu.roofline import arithmetic, bandwidths, shares


def test_figures_replace_those_of_the_same_workload_and_keep_all_else(tmp_path):
    path = tmp_path / "h200.json"
    before = {"kernels": [], "workloads": {"small": {"b8": {"tok_s": 1}, "offline": {"tok_s": 2}}}}
    path.write_text(json.dumps(before))
    record_workloads(path, {"read_gbps": 4321.04}, {"small": {"offline": {"tok_s": 3}}})
    record_workloads(path, {}, {"small": {"offline": {"in_process_ratio": 0.99}}})
    record_workloads(path, {}, {"small": {"offline": {"tok_s": 4}}, "large": {"b8": {"tok_s": 5}}})
    results = json.loads(path.read_text())
    assert results["workloads"] == {
        "small": {"b8": {"tok_s": 1}, "offline": {"tok_s": 4, "in_process_ratio": 0.99}},
        "large": {"b8": {"tok_s": 5}},
    }
    assert results["kernels"] == []
    assert results["read_gbps"] == 4321.0


def test_the_picture_takes_what_is_there():
    results = {
        "kernels": [
            {"name": "store", "shape": "8", "us": 2.0, "gbps": 4.0},
            {"name": "store", "shape": "1", "us": 1.0, "gbps": 1.0},
            {"name": "prefill", "shape": "1x8", "us": 1.0, "tflops": 400.0},
        ],
        "workloads": {
            "small": {
                "offline": {"tok_s": 3.0, "limit_tok_s": 4.0, "in_process_ratio": 0.99},
                "b8": {"in_process_ratio": 0.98},
            }
        },
    }
    assert bandwidths(results) == {"store": [(1e3, 1.0), (8e3, 4.0)]}
    assert arithmetic(results) == {"prefill 1x8": 400.0}
    assert shares(results) == {"small offline": pytest.approx(0.75)}


def test_a_picture_of_nothing_has_no_parts():
    assert bandwidths({}) == arithmetic({}) == shares({}) == {}
