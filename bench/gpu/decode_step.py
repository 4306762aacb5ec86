"""Whole decode steps of one model on this GPU, through plans: `python -m bench.gpu.decode_step`.

Random weights in the shapes of Qwen3-0.6B (without its QK-norm), bfloat16, page size 16, greedy.
Writes `step` of h200.json: microseconds of a step, host to host, by rows and context; what the
graph alone takes is `graph_us`. `--json PATH` writes elsewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu.results import H200, commit
from runnersvc.families import load_spec
from runnersvc.model_runner import ModelRunner
from servicekit.plan import Int32Array, Plan, RowOpen

PAGE_SIZE, MAX_SEQ_LEN, MAX_ROWS = 16, 2048, 256
CASES = ((1, 1000), (8, 1000), (32, 1000), (128, 900), (256, 1000))
STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=H200)
    path: Path = parser.parse_args().json
    with tempfile.TemporaryDirectory() as model_dir:
        _save_model(Path(model_dir))
        began = time.perf_counter()
        runner = ModelRunner(
            Path(model_dir),
            load_spec(Path(model_dir)),
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
            num_pages=MAX_ROWS * 1100 // PAGE_SIZE,
            page_size=PAGE_SIZE,
            max_running_reqs=MAX_ROWS,
            max_seq_len=MAX_SEQ_LEN,
        )
        print(f"loaded and captured in {time.perf_counter() - began:.1f} s")
        figures = {f"{rows}x{context}": _case(runner, rows, context) for rows, context in CASES}
    for case, figure in figures.items():
        print(case, figure)
    results = json.loads(path.read_text()) if path.exists() else {}
    results.setdefault("step", {})["0.6b without qk_norm"] = {
        "commit": commit(),
        "torch": torch.__version__,
        **figures,
    }
    path.write_text(json.dumps(results, indent=2) + "\n")


def _save_model(model_dir: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=MAX_SEQ_LEN,
        tie_word_embeddings=True,
        dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    with torch.device("cuda"):
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(model_dir)


@torch.inference_mode()
def _case(runner: ModelRunner, num_rows: int, context: int) -> dict[str, float]:
    """Rows of random K and V: a prompt of one token each, then steps that say they are longer."""
    rows = np.arange(num_rows, dtype=np.int32)
    pages = -(-(context + STEPS + 1) // PAGE_SIZE)
    rng = np.random.default_rng(0)
    page_ids = rng.permutation(MAX_ROWS * 1100 // PAGE_SIZE)[: num_rows * pages]
    locs = (page_ids.reshape(num_rows, pages, 1) * PAGE_SIZE + np.arange(PAGE_SIZE)).astype(
        np.int32
    )
    runner._kv_cache.buffer.normal_()  # noqa: SLF001 # zeros would flatter
    positions = np.tile(np.arange(pages * PAGE_SIZE, dtype=np.int32), num_rows)
    write = np.repeat(rows, pages * PAGE_SIZE), positions, locs.ravel()
    opens = tuple(
        RowOpen(int(row), 1, temperature=0, top_k=0, top_p=1, seed=0, choice=0) for row in rows
    )
    ids = rng.integers(0, 151_936, num_rows).astype(np.int32)
    cached = np.full(num_rows, context - 1, dtype=np.int32)
    runner.execute(_plan(rows, cached, ids, opens=opens, write=write))
    seconds = []
    for step in range(STEPS):
        plan = _plan(rows, cached + 1 + step, None)
        began = time.perf_counter()
        runner.execute(plan)
        seconds.append(time.perf_counter() - began)
    graphs = runner._graphs  # noqa: SLF001 # what the graph takes without the host
    assert graphs is not None
    rows_and_lens = torch.tensor(np.stack((rows, cached + 2)), device="cuda")
    began_event, ended_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph_us = []
    for _ in range(STEPS):
        began_event.record()
        graphs.replay(rows_and_lens)
        ended_event.record()
        ended_event.synchronize()
        graph_us.append(began_event.elapsed_time(ended_event) * 1000)
    return {
        "us": round(statistics.median(seconds) * 1e6, 1),
        "graph_us": round(statistics.median(graph_us), 1),
        "tok_s": round(num_rows / statistics.median(seconds)),
    }


def _plan(
    rows: Int32Array,
    cached: Int32Array,
    ids: Int32Array | None,
    opens: tuple[RowOpen, ...] = (),
    write: tuple[Int32Array, Int32Array, Int32Array] | None = None,
) -> Plan:
    nothing = np.zeros(0, dtype=np.int32)
    return Plan(
        manager_id="bench",
        plan_id=1,
        acked_plan_id=0,
        reset_rows=False,
        close_rows=nothing,
        open_rows=opens,
        write_rows=nothing if write is None else write[0],
        write_positions=nothing if write is None else write[1],
        write_locs=nothing if write is None else write[2],
        step_rows=rows,
        step_cached_lens=cached,
        step_extend_lens=np.ones(len(rows), dtype=np.int32),
        step_num_literals=np.full(len(rows), ids is not None, dtype=np.int32),
        step_samples=np.ones(len(rows), dtype=np.bool_),
        literal_ids=nothing if ids is None else ids,
    )


if __name__ == "__main__":
    main()
