from __future__ import annotations

import pytest

from bench.gpu.workloads import NAMES, NUM_ROWS, Request, with_common_prefix, workload

PAGE_SIZE = 16


def test_offline_is_the_workload_of_the_published_figures():
    offline = workload("offline")
    assert (len(offline.requests), offline.input_tokens, offline.output_tokens) == (
        256, 142_827, 133_966,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "num_requests", "input_tokens", "output_tokens", "cached_tokens"),
    [
        ("single", 1, 512, 512, 0),
        ("b8", 8, 8 * 512, 8 * 256, 0),
        ("b32", 32, 32 * 512, 32 * 256, 0),
        ("b128", 128, 128 * 512, 128 * 256, 0),
        ("prefill2k", 64, 64 * 2000, 64, 0),
        ("shared", 256, 256 * 2176, 256 * 64, 256 * 2048),
    ],
)
def test_the_others_have_the_lengths_of_their_names(
    name, num_requests, input_tokens, output_tokens, cached_tokens
):
    given = workload(name)
    assert len(given.requests) == num_requests <= NUM_ROWS
    assert given.input_tokens == input_tokens
    assert given.output_tokens == output_tokens
    assert given.cached_tokens == cached_tokens


@pytest.mark.parametrize("name", NAMES)
def test_no_two_prompts_of_two_turns_share_a_page_beyond_the_common_prefix(name):
    first = workload(name)
    pages = [
        tuple(request.prompt_ids[first.common_len :][:PAGE_SIZE])
        for turn in (first, first.turn(1))
        for request in turn.requests
    ]
    assert len(set(pages)) == len(pages) == 2 * len(first.requests)


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_keeps_common_ids_and_lengths(name):
    first = workload(name)
    again = first.turn(1)
    assert first.common_len % PAGE_SIZE == 0
    for before, after in zip(first.requests, again.requests, strict=True):
        assert after.prompt_ids[: first.common_len] == before.prompt_ids[: first.common_len]
        assert len(after.prompt_ids) == len(before.prompt_ids)
        assert after.max_tokens == before.max_tokens


def test_ids_go_around_at_the_largest():
    given = with_common_prefix("tiny", 1, common_len=1, own_len=1, max_tokens=1)
    ((common_id, own_id), _) = given.requests[0]
    moved = given.turn(10_000 - own_id + 1)
    assert moved.requests == (Request([common_id, 0], 1),)
