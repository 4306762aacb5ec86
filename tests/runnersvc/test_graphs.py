"""Steps as CUDA graphs: what eager ones sample, and nothing that padding could reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from runnersvc.model_runner import ModelRunner
from tests.runnersvc.tiny_llama import (
    Row,
    greedy,
    make_plan,
    make_runner,
    prompt,
    random_pages,
    save_tiny_qwen3,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NUM_ROWS = 6
NUM_PAGES = 24 * NUM_ROWS


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_qwen3(path, head_dim=64)
    return path


def cuda_runner(model_dir: Path, *, max_graph_rows: int = 512, **changes: int) -> ModelRunner:
    given = {"num_pages": NUM_PAGES, **changes}
    return make_runner(model_dir, device="cuda", max_graph_rows=max_graph_rows, **given)


def decoded(runner: ModelRunner, rows: list[int], steps: int) -> tuple[list[list[int]], list[bool]]:
    """Prompts of the rows, then steps that decode them. Returns ids by step, and which steps came
    from a graph.
    """
    lens = {row: 3 + 2 * row for row in rows}
    prompts = [Row(row, 0, prompt(length, seed=row)) for row, length in lens.items()]
    write = random_pages(rows, page_size=4, num_pages=NUM_PAGES)
    plans = [make_plan(prompts, opens=[greedy(row) for row in rows], write=write)]
    plans += [make_plan([Row(row, n + step) for row, n in lens.items()]) for step in range(steps)]
    done = [runner.launch(plan).wait() for plan in plans]
    return [one.sampled_ids.tolist() for one in done], [one.from_graph for one in done]


@pytest.mark.parametrize("num_rows", range(1, NUM_ROWS + 1))
def test_case_4_1_every_batch_samples_what_it_does_without_graphs(
    model_dir: Path, num_rows: int
) -> None:
    """nano-vllm issue 190: sizes between those captured, and one past the largest."""
    rows = list(range(num_rows))
    ids, from_graph = decoded(cuda_runner(model_dir, max_graph_rows=5), rows, steps=4)
    eager_ids, eager = decoded(cuda_runner(model_dir, max_graph_rows=0), rows, steps=4)
    assert ids == eager_ids
    assert from_graph == [True] + [num_rows <= 5] * 4
    assert not any(eager)


def test_a_mixed_step_samples_what_it_does_without_graphs(model_dir: Path) -> None:
    def ids_of(runner: ModelRunner) -> list[list[int]]:
        ids, _ = decoded(runner, [0, 1, 2], steps=1)
        long = prompt(30, seed=9)
        write = random_pages([0, 1, 2, 4], page_size=4, num_pages=NUM_PAGES)[-96:]
        mixed = [
            make_plan([Row(1, 6), Row(4, 0, long[:17], samples=False), Row(0, 4)],
                      opens=[greedy(4)], write=write),
            make_plan([Row(4, 17, long[17:]), Row(2, 8), Row(1, 7)]),
            make_plan([Row(4, 30), Row(1, 8)]),
        ]  # fmt: skip
        return ids + [runner.execute(plan).tolist() for plan in mixed]

    assert ids_of(cuda_runner(model_dir)) == ids_of(cuda_runner(model_dir, max_graph_rows=0))


def test_case_4_1_a_row_may_grow_to_its_last_position_and_a_short_one_follow(
    model_dir: Path,
) -> None:
    """nano-vllm issue 190: the last column of the table, and a former user's entries after it."""

    def ids_of(max_graph_rows: int) -> list[int]:
        runner = cuda_runner(model_dir, max_graph_rows=max_graph_rows, max_seq_len=64)
        write = random_pages([0], page_size=4)[:64]
        ids = []
        for length in (63, 5):
            first = Row(0, 0, prompt(length, seed=length))
            ids += runner.execute(make_plan([first], opens=[greedy(0)], write=write)).tolist()
            ids += runner.execute(make_plan([Row(0, length)])).tolist()
        return ids

    assert ids_of(512) == ids_of(0)


@torch.inference_mode()
def test_case_4_2_only_the_locs_of_real_rows_and_the_dummy_page_are_written(
    model_dir: Path,
) -> None:
    """VLLM issue 43810: the last loc of the pool is a live one."""
    runner = cuda_runner(model_dir)
    rows = [5, 0, 3]
    decoded(runner, rows, steps=1)
    buffer = runner._kv_cache.buffer
    for plan, stored in (
        (make_plan([Row(row, 4 + 2 * row) for row in rows]), {row: [4 + 2 * row] for row in rows}),
        (make_plan([Row(3, 11, [1, 2, 3])]), {3: [11, 12, 13]}),
    ):
        before = buffer.clone()
        assert runner.launch(plan).wait().from_graph
        changed = (buffer != before).flatten(4).any(-1).any(0).any(0)  # [pages, page_size]
        table = runner.read_table()
        locs = {int(table[row, at]) for row, positions in stored.items() for at in positions}
        inside = changed[:NUM_PAGES].flatten().nonzero().flatten().tolist()
        assert set(inside) == locs


@torch.inference_mode()
def test_case_4_3_what_is_in_the_dummy_page_reaches_no_real_row(model_dir: Path) -> None:
    """SGLang pull request 32477: 0 times NaN, in a padded batch and a page partly filled."""

    def ids_of(dummy: float) -> list[list[int]]:
        runner = cuda_runner(model_dir)
        runner._kv_cache.buffer[:, :, -1] = dummy
        return decoded(runner, [2], steps=5)[0]

    clean = ids_of(0.0)
    assert ids_of(torch.nan) == clean
    assert np.array(clean).max() < 97
