"""Penalties, biases and ids held back reach the sampler: greedy rows against transformers' own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from servicekit.plan import RowOpen, RowRules
from tests.runnersvc.tiny_llama import (
    VOCAB,
    Row,
    greedy,
    make_plan,
    make_runner,
    prompt,
    random_pages,
    save_tiny_llama,
)

pytestmark = pytest.mark.torch
NUM_NEW = 16
ROW = 2


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def model(model_dir: Path) -> LlamaForCausalLM:
    return save_tiny_llama(model_dir, head_dim=64)


def answer(
    model_dir: Path, rules: RowRules | None, device: str, *, beside: bool = False, sampled: int = 0
) -> list[int]:
    """Of the prompt, in steps; with `beside` a row without rules runs along. With `sampled` the row
    opens anew after so many tokens, as it does after a preemption.
    """
    runner = make_runner(model_dir, device=device)
    ids = prompt(9, seed=3)
    opened = replace(greedy(ROW), prompt_len=len(ids), rules=rules)
    opens: list[RowOpen] = [opened]
    rows = [Row(ROW, 0, ids)]
    if beside:
        opens.append(greedy(0))
        rows.insert(0, Row(0, 0, prompt(5, seed=4)))
    write = random_pages([ROW, 0], page_size=4)
    out = [int(runner.execute(make_plan(rows, opens=opens, write=write))[-1])]
    while len(out) < NUM_NEW:
        if len(out) == sampled:
            history = (*ids, *out)
            rules = None if rules is None else replace(rules, history_ids=history)
            plan = make_plan([Row(ROW, 0, history)], opens=[replace(opened, rules=rules)])
        else:
            decodes = [Row(ROW, len(ids) + len(out) - 1)]
            if beside:
                decodes.insert(0, Row(0, 5 + len(out) - 1))
            plan = make_plan(decodes)
        out.append(int(runner.execute(plan)[-1]))
    return out


def generated(model: LlamaForCausalLM, **settings: object) -> list[int]:
    ids = prompt(9, seed=3)
    given = torch.tensor([ids])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=NUM_NEW,
        pad_token_id=0,
        **settings,
    )
    new: list[int] = out[0, len(ids) :].tolist()
    return new


HISTORY = tuple(prompt(9, seed=3))


@pytest.mark.parametrize(("beside", "sampled"), [(False, 0), (True, 0), (False, 5)])
def test_a_repetition_penalty_is_that_of_transformers(
    model_dir: Path, model: LlamaForCausalLM, device: str, beside: bool, sampled: int
) -> None:
    rules = RowRules(repetition_penalty=1.3, history_ids=HISTORY)
    expected = generated(model, repetition_penalty=1.3)
    assert expected != generated(model)
    assert answer(model_dir, rules, device, beside=beside, sampled=sampled) == expected


def test_end_tokens_are_held_back_until_there_are_enough(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    plain = generated(model)
    ends = tuple(set(plain))
    rules = RowRules(min_tokens=6, stop_token_ids=ends)
    ours = answer(model_dir, rules, device)
    expected = generated(model, min_new_tokens=6, eos_token_id=list(ends))
    assert ours[: len(expected)] == expected
    assert not set(ours[:6]) & set(ends)
    assert ours[6] in ends


def test_a_bias_lifts_a_token_above_all_others_or_rules_it_out(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    first = generated(model)[0]
    other = (first + 1) % VOCAB
    assert (
        answer(model_dir, RowRules(bias_ids=(other,), biases=(100.0,)), device)[:3] == [other] * 3
    )
    banned = answer(model_dir, RowRules(bias_ids=(first, other), biases=(-100.0, 0.0)), device)
    assert first not in banned


def test_presence_and_frequency_are_taken_from_what_was_sampled(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    """By hand: the logits of transformers, less what the answer has so far."""
    rules = RowRules(presence_penalty=1.5, frequency_penalty=0.75, history_ids=HISTORY)
    ids = list(HISTORY)
    for _ in range(NUM_NEW):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        counts = torch.bincount(torch.tensor(ids[9:], dtype=torch.int64), minlength=VOCAB)
        ids.append(int((logits - 1.5 * (counts > 0) - 0.75 * counts).argmax()))
    assert answer(model_dir, rules, device) == ids[9:]
    assert ids[9:] != generated(model)


def test_min_p_of_1_leaves_the_likeliest_token_alone(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    runner = make_runner(model_dir, device=device)
    ids = prompt(9, seed=3)
    opened = replace(greedy(ROW), temperature=3.0, seed=5, rules=RowRules(min_p=1.0))
    write = random_pages([ROW], page_size=4)
    first = make_plan([Row(ROW, 0, ids)], opens=[opened], write=write)
    assert runner.execute(first).tolist() == generated(model)[:1]


def test_a_row_that_is_opened_again_without_rules_is_free_of_them(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    runner = make_runner(model_dir, device=device)
    ids = prompt(9, seed=3)
    first = generated(model)[0]
    write = random_pages([ROW], page_size=4)
    banned = replace(greedy(ROW), rules=RowRules(bias_ids=(first,), biases=(-100.0,)))
    ruled = make_plan([Row(ROW, 0, ids)], opens=[banned], write=write)
    assert runner.execute(ruled).tolist() != [first]
    free = make_plan([Row(ROW, 0, ids)], opens=[greedy(ROW)])
    assert runner.execute(free).tolist() == [first]


def test_log_probabilities_are_the_model_s_own_whatever_is_drawn(
    model_dir: Path, model: LlamaForCausalLM, device: str
) -> None:
    """Of rows that ask; the one between them does not. Biases and temperature change nothing."""
    runner = make_runner(model_dir, device=device)
    wishes = {
        0: RowRules(logprobs=2, bias_ids=(5,), biases=(100.0,)),
        1: None,
        2: RowRules(logprobs=0),
    }
    prompts = {row: prompt(4 + row, seed=row) for row in wishes}
    opens = [replace(greedy(row), rules=rules) for row, rules in wishes.items()]
    write = random_pages(list(wishes), page_size=4)
    rows = [Row(row, 0, ids) for row, ids in prompts.items()]
    executed = runner.launch(make_plan(rows, opens=opens, write=write)).wait()
    logprobs = executed.logprobs
    assert logprobs is not None
    assert logprobs.samples.tolist() == [0, 2]
    for nth, row in enumerate((0, 2)):
        with torch.inference_mode():
            expected = model(torch.tensor([prompts[row]])).logits[0, -1].log_softmax(-1)
        token_id = int(executed.sampled_ids[row])
        assert logprobs.chosen[nth] == pytest.approx(float(expected[token_id]), abs=1e-4)
        best = expected.topk(2)
        assert logprobs.top_ids[nth].tolist() == best.indices.tolist()
        assert logprobs.top[nth] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert executed.sampled_ids[0] == 5
    decodes = make_plan([Row(row, len(ids)) for row, ids in prompts.items()])
    again = runner.launch(decodes).wait().logprobs
    assert again is not None
    assert again.top.shape == (2, 2)


def test_without_a_wish_no_log_probabilities_come(model_dir: Path, device: str) -> None:
    runner = make_runner(model_dir, device=device)
    write = random_pages([ROW], page_size=4)
    plan = make_plan([Row(ROW, 0, prompt(9))], opens=[greedy(ROW)], write=write)
    assert runner.launch(plan).wait().logprobs is None
