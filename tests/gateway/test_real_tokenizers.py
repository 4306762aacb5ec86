"""The sum of the pieces is the decode of the whole for vocabularies of real models, and costs the
same for each token.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import cast

import pytest
from tokenizers import Tokenizer as Backend

from gateway.detokenizer import Detokenizer
from gateway.text_stream import TextStream
from gateway.tokenizer import Tokenizer
from tests.gateway.real_tokenizers import REAL
from tests.gateway.test_detokenizer import CountingBackend, output_text
from tests.gateway.tiny_tokenizers import CHINESE, EMOJI, ENGLISH, KOREAN, THAI

NUM_TEXTS = 10_000
WORDS = [*ENGLISH.split(), *KOREAN.split(), *EMOJI.split(), THAI, CHINESE, "مرحبا", "שלום", "Ünï"]
WORDS += ["e\u0301", "\u200d", "\ufffd", "\ufeff", "…", "ﬁ", "½", "𝔘", "🇳🇴", "0123", "==", "\t"]
PLANES = [0, 0, 0, 1, 2, 16]
RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x900, 0xA00), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return REAL[request.param](tmp_path_factory.mktemp(request.param))


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 16)):
        kind = rng.randrange(4)
        if kind == 0:
            parts.append(rng.choice(WORDS))
        elif kind == 1:
            parts.append(rng.choice([" ", "  ", "\n", " \n ", "\r\n"]))
        elif kind == 2:
            parts.append(chr(rng.choice(PLANES) * 0x10000 + rng.randrange(0xD800)))
        else:
            parts.append(chr(rng.randrange(*rng.choice(RANGES))))
    return "".join(parts)


def test_case_7_1_ten_thousand_texts_in_chunks_are_the_decode_of_the_whole(
    real: Tokenizer,
) -> None:
    """Case 7.1: random texts, cut anywhere, in mid-character too, after a prompt or without one."""
    rng = random.Random(0)
    special = sorted(real.special_ids)
    for nth in range(NUM_TEXTS):
        ids = real.encode(random_text(rng), add_special_tokens=False)
        if nth % 4 == 0 and special:
            ids.insert(rng.randrange(len(ids) + 1), rng.choice(special))
        cut = rng.randrange(len(ids) + 1) if nth % 2 else 0
        prompt_ids, ids = ids[:cut], ids[cut : cut + rng.randrange(1, len(ids) + 2)]
        stream = TextStream(real, prompt_ids, end_token_ids=frozenset())
        deltas, start = [], 0
        while start < len(ids):
            end = start + rng.randrange(1, 6)
            deltas.append(stream.push(ids[start:end]))
            start = end
        deltas.append(stream.finish())
        told = "".join(delta.text for delta in deltas)
        assert told == output_text(real, prompt_ids, ids), (nth, prompt_ids, ids)
        assert [token_id for delta in deltas for token_id in delta.token_ids] == ids


def test_the_cost_is_linear_in_the_text(real: Tokenizer) -> None:
    """Counted in ids decoded: as many for each token of a long text as of a short one."""
    costs = []
    for times in (20, 200):
        ids = real.encode(f"{ENGLISH} {KOREAN} {CHINESE} {EMOJI} {THAI} ߷\x00 " * times)
        counting = CountingBackend(real.backend)
        detokenizer = Detokenizer(replace(real, backend=cast("Backend", counting)), [])
        told = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert told == real.decode(ids)
        costs.append(counting.decoded_ids / len(ids))
    assert max(costs) < 20
    assert costs[1] == pytest.approx(costs[0], rel=0.05)
