from __future__ import annotations

import pytest
import torch

from kernels.reference.attention import decode_attention, prefill_attention
from tests.kernels.paged_world import attend_by_hand, paged_world

pytestmark = pytest.mark.torch

HEAD_DIM = 8
SCALE = HEAD_DIM**-0.5
NUM_KV_HEADS = 2
LENS = [1, 3, 4, 5, 15, 16, 17, 33, 64, 65, 2]  # around the borders of pages of 4 and 16 tokens


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_decode_reads_each_row_through_its_own_locs_and_nothing_else(
    page_size: int, group: int
) -> None:
    world = paged_world(LENS, page_size=page_size, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM)
    order = torch.tensor([3, 10, 0, 8, 6, 1, 2, 4, 5, 9, 7], dtype=torch.int32)
    seq_lens = torch.tensor(LENS, dtype=torch.int32)[order]
    q = torch.randn(len(LENS), NUM_KV_HEADS * group, HEAD_DIM)

    out = decode_attention(
        q, world.k_cache, world.v_cache, world.page_table, order, seq_lens, SCALE
    )

    for b, row in enumerate(order.tolist()):
        expected = attend_by_hand(q[b], world.k_rows[row], world.v_rows[row], SCALE)
        torch.testing.assert_close(out[b].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_decoding_row_alone_gets_what_it_gets_among_others() -> None:
    world = paged_world([5, 40, 17], page_size=4, num_kv_heads=3, head_dim=HEAD_DIM)
    lens = torch.tensor([5, 40, 17], dtype=torch.int32)
    rows = torch.arange(3, dtype=torch.int32)
    q = torch.randn(3, 9, HEAD_DIM)
    caches = world.k_cache, world.v_cache, world.page_table

    together = decode_attention(q, *caches, rows, lens, SCALE)

    for b in range(3):
        one = slice(b, b + 1)
        alone = decode_attention(q[one], *caches, rows[one], lens[one], SCALE)
        torch.testing.assert_close(together[one], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_prefill_sees_the_cached_prefix_and_no_later_token(page_size: int, group: int) -> None:
    cached_lens = [0, 0, 15, 16, 17, 30, 4]
    extend_lens = [1, 18, 2, 16, 3, 1, 31]
    lens = [a + b for a, b in zip(cached_lens, extend_lens, strict=True)]
    world = paged_world(lens, page_size=page_size, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM)
    q = torch.randn(sum(extend_lens), NUM_KV_HEADS * group, HEAD_DIM)

    out = prefill_attention(
        q,
        world.k_cache,
        world.v_cache,
        world.page_table,
        torch.arange(len(lens), dtype=torch.int32),
        torch.tensor(cached_lens, dtype=torch.int32),
        torch.tensor(extend_lens, dtype=torch.int32),
        SCALE,
    )

    token = 0
    for row, (cached_len, extend_len) in enumerate(zip(cached_lens, extend_lens, strict=True)):
        for i in range(extend_len):
            seen = cached_len + i + 1
            k, v = world.k_rows[row][:seen], world.v_rows[row][:seen]
            expected = attend_by_hand(q[token], k, v, SCALE)
            torch.testing.assert_close(out[token].double(), expected, rtol=1e-5, atol=1e-5)
            token += 1
    assert token == len(q)
