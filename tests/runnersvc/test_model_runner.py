"""Whole plans on a tiny model, token for token against transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from runnersvc.model_runner import ModelRunner
from servicekit.errors import SetupError
from tests.runnersvc.tiny_llama import (
    SAVE_TINY,
    Row,
    greedy,
    make_plan,
    make_runner,
    prompt,
    random_pages,
)

pytestmark = pytest.mark.torch

NUM_NEW = 12


@torch.inference_mode()
def continued_by_transformers(model: PreTrainedModel, ids: list[int]) -> list[int]:
    """Greedy; asserts that no near-tie decides."""
    ids = list(ids)
    for _ in range(NUM_NEW):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > 1e-3
        ids.append(int(best.indices[0]))
    return ids[-NUM_NEW:]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    return tmp_path_factory.mktemp(family)


@pytest.fixture(scope="module")
def model(model_dir: Path, family: str) -> PreTrainedModel:
    return SAVE_TINY[family](model_dir, head_dim=64)  # one that the GPU kernels are made for


def poison(runner: ModelRunner) -> None:
    """NaN in every loc: only what a plan stores may be read."""
    with torch.inference_mode():
        runner._kv_cache.buffer.fill_(torch.nan)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_rows_decode_greedily_as_transformers_does(
    model_dir: Path, model: PreTrainedModel, page_size: int, device: str
) -> None:
    lens = {4: 1, 0: 15, 2: 16, 5: 17}
    num_pages = 4 * 96 // page_size
    runner = make_runner(model_dir, page_size=page_size, num_pages=num_pages, device=device)
    poison(runner)
    write = random_pages(list(lens), page_size=page_size, num_pages=num_pages)
    prompts = {row: prompt(length, seed=10 + row) for row, length in lens.items()}

    first = make_plan(
        [Row(row, 0, ids) for row, ids in prompts.items()],
        opens=[greedy(row) for row in lens],
        write=write,
    )
    out = [runner.execute(first)]
    for step in range(NUM_NEW - 1):
        out.append(runner.execute(make_plan([Row(row, n + step) for row, n in lens.items()])))
        runner.check_integrity()

    for column, ids in zip(np.stack(out).T.tolist(), prompts.values(), strict=True):
        assert column == continued_by_transformers(model, ids)


def test_prefill_and_decode_rows_share_a_step_in_any_order(
    model_dir: Path, model: PreTrainedModel, device: str
) -> None:
    """A chunked prompt between two decoding rows; its first chunks do not sample."""
    runner = make_runner(model_dir, device=device)
    poison(runner)
    a, b, c = prompt(6, seed=1), prompt(9, seed=2), prompt(20, seed=3)
    opens = [greedy(row) for row in (0, 1, 2)]
    write = random_pages([0, 1, 2], page_size=4)
    out = [runner.execute(make_plan([Row(1, 0, b), Row(0, 0, a)], opens=opens, write=write))]

    out.append(runner.execute(make_plan([Row(0, 6), Row(2, 0, c[:7], samples=False), Row(1, 9)])))
    out.append(runner.execute(make_plan([Row(2, 7, c[7:8], samples=False), Row(1, 10), Row(0, 7)])))
    out.append(runner.execute(make_plan([Row(2, 8, c[8:]), Row(0, 8), Row(1, 11)])))

    of_a, of_b = continued_by_transformers(model, a), continued_by_transformers(model, b)
    assert [ids.tolist() for ids in out] == [
        [of_b[0], of_a[0]],
        [of_a[1], of_b[1]],
        [of_b[2], of_a[2]],
        [continued_by_transformers(model, c)[0], of_a[3], of_b[3]],
    ]


def test_a_row_that_starts_on_anothers_pages_reads_its_prefix_there(
    model_dir: Path, model: PreTrainedModel, device: str
) -> None:
    runner = make_runner(model_dir, device=device)
    poison(runner)
    shared, rest = prompt(8, seed=4), prompt(5, seed=5)
    write = random_pages([0], page_size=4)
    runner.execute(make_plan([Row(0, 0, shared)], opens=[greedy(0)], write=write))

    hit = [(3, position, loc) for _, position, loc in write[:8]]  # two pages of row 0
    own = [entry for entry in random_pages([0, 3], page_size=4)[96:] if 8 <= entry[1] < 16]
    out = runner.execute(make_plan([Row(3, 8, rest)], opens=[greedy(3)], write=hit + own))

    assert out.tolist() == continued_by_transformers(model, shared + rest)[:1]


def test_a_draw_depends_on_seed_choice_and_position_but_not_on_the_batch(model_dir: Path) -> None:
    draws = {
        row: replace(greedy(row), temperature=1.0, seed=11, choice=row % 2) for row in range(4)
    }
    ids = prompt(7)

    def sampled(rows: list[int]) -> dict[int, int]:
        runner = make_runner(model_dir)
        plan = make_plan(
            [Row(row, 0, ids) for row in rows],
            opens=[draws[row] for row in rows],
            write=random_pages(rows, page_size=4),
        )
        return dict(zip(rows, runner.execute(plan).tolist(), strict=True))

    together = sampled([2, 0, 3, 1])

    assert together[0] == together[2]
    assert together[1] == together[3]
    assert all(sampled([row])[row] == together[row] for row in range(4))


def test_a_reopened_row_samples_with_its_new_parameters(
    model_dir: Path, model: PreTrainedModel
) -> None:
    runner = make_runner(model_dir)
    hot = replace(greedy(0), temperature=100.0, seed=3)
    ids = prompt(5)
    write = random_pages([0], page_size=4)
    runner.execute(make_plan([Row(0, 0, ids)], opens=[hot], write=write))

    out = runner.execute(make_plan([Row(0, 0, ids)], opens=[greedy(0)]))

    assert out.tolist() == continued_by_transformers(model, ids)[:1]


def test_plans_without_steps_or_without_sampling_rows_return_no_ids(model_dir: Path) -> None:
    runner = make_runner(model_dir)

    for plan in (
        make_plan(),
        make_plan(opens=[greedy(1)], write=random_pages([1], page_size=4)),
        make_plan([Row(1, 0, prompt(5), samples=False)]),
    ):
        out = runner.execute(plan)
        assert (out.shape, out.dtype) == ((0,), np.int32)


def test_a_plan_of_writes_alone_shows_in_the_page_table(model_dir: Path) -> None:
    runner = make_runner(model_dir)

    runner.execute(make_plan(write=[(2, 4, 40), (2, 5, 41)]))

    assert runner.read_table()[2, 3:7].tolist() == [403, 40, 41, 402]


def test_bfloat16_runs(model_dir: Path) -> None:
    runner = make_runner(model_dir, num_pages=40, dtype=torch.bfloat16, max_seq_len=64)
    write = random_pages([0], page_size=4, num_pages=16)
    plan = make_plan([Row(0, 0, prompt(9))], opens=[greedy(0)], write=write)

    ids = [int(runner.execute(plan)[0]), int(runner.execute(make_plan([Row(0, 9)]))[0])]

    assert all(0 <= token_id < 97 for token_id in ids)


def test_rows_longer_than_the_model_was_made_for_are_refused(model_dir: Path) -> None:
    with pytest.raises(SetupError, match=r"max_seq_len is 129.*128"):
        make_runner(model_dir, max_seq_len=129)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@torch.inference_mode()
def test_case_6_8_a_row_whose_logits_are_no_numbers_gets_no_token_and_the_others_theirs(
    model_dir: Path, model: PreTrainedModel, device: str, broken: float
) -> None:
    """SGLang issue 33187: not a random token sent as if all were well; from step to step."""

    def sampled(*, break_row: bool) -> list[list[int]]:
        runner = make_runner(model_dir, device=device)
        prompts = {row: prompt(5 + row, seed=row) for row in (0, 1, 2)}
        first = make_plan(
            [Row(row, 0, ids) for row, ids in prompts.items()],
            opens=[greedy(row) for row in prompts],
            write=random_pages(list(prompts), page_size=4),
        )
        out = [runner.execute(first).tolist()]
        if break_row:
            loc = int(runner.read_table()[1, 2])
            runner._kv_cache.buffer.flatten(2, 3)[1, :, loc] = broken
        for step in range(2):
            decodes = [Row(row, len(ids) + step) for row, ids in prompts.items()]
            out.append(runner.execute(make_plan(decodes)).tolist())
        return out

    whole, hurt = sampled(break_row=False), sampled(break_row=True)
    assert hurt[0] == whole[0]
    assert [ids[1] for ids in hurt[1:]] == [-1, -1]
    assert [ids[::2] for ids in hurt] == [ids[::2] for ids in whole]
