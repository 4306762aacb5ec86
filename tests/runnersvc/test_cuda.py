"""The same plans on a GPU: token for token as transformers does on the CPU, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.runnersvc.test_model_runner import NUM_NEW, continued_by_transformers, poison
from tests.runnersvc.tiny_llama import (
    Row,
    greedy,
    make_plan,
    make_runner,
    prompt,
    random_pages,
    save_tiny_llama,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def model(model_dir: Path) -> LlamaForCausalLM:
    """A head_dim that the kernels are made for."""
    return save_tiny_llama(model_dir, head_dim=64)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_rows_decode_greedily_as_transformers_does(
    model_dir: Path, model: LlamaForCausalLM, page_size: int
) -> None:
    lens = {4: 1, 0: 15, 2: 16, 5: 17}
    num_pages = 4 * 96 // page_size
    runner = make_runner(model_dir, page_size=page_size, num_pages=num_pages, device="cuda")
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
    model_dir: Path, model: LlamaForCausalLM
) -> None:
    runner = make_runner(model_dir, device="cuda")
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
