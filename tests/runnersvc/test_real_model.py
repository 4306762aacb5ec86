"""SmolLM2-135M-Instruct, fetched before, answers on a GPU."""

from __future__ import annotations

import pytest
import torch

from gateway.model_cache import damage, models_dir
from gateway.tokenizer import Tokenizer
from runnersvc.config import RunnerConfig
from runnersvc.server import checked, load
from tests.runnersvc.tiny_llama import Row, greedy, make_plan

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
MODEL = models_dir() / "smollm2-135m-instruct"
PAGE_SIZE = 16


@pytest.mark.skipif(damage(MODEL) is not None, reason="pagewire fetch smollm2-135m-instruct first")
@pytest.mark.parametrize(
    ("dtype", "given", "answer"),
    [
        ("float32", "", "The capital of France is Paris."),
        # "The" is 0.08 ahead of "L" and "." 0.3 ahead of the next, less than bfloat16 tells apart
        # at logits of 25; what lies between leads by 3 or more.
        ("bfloat16", "The", " capital of France is Paris"),
    ],
)
def test_it_knows_the_capital_of_france(dtype: str, given: str, answer: str) -> None:
    config = RunnerConfig(
        listen="", model=str(MODEL), device="cuda", dtype=dtype, kv_tokens=4096, max_seq_len=512
    )
    model, _ = load(config, checked(config))
    tokenizer = Tokenizer.load(MODEL)
    ids = tokenizer.encode_chat([("user", "What is the capital of France?")])
    ids += tokenizer.encode(given) if given else []
    write = [(0, at, PAGE_SIZE * 8 + at) for at in range(PAGE_SIZE * 8)]
    plan = make_plan([Row(0, 0, ids)], opens=[greedy(0)], write=write)
    sampled = [int(model.execute(plan)[0])]
    for length in range(len(ids), len(ids) + len(tokenizer.encode(answer)) - 1):
        sampled += model.execute(make_plan([Row(0, length)])).tolist()
    assert tokenizer.decode(sampled) == answer
