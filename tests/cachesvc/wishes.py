"""What random histories ask for: prompts that are often the same, in small worlds."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

MAX_PROMPT_LEN = 12
VOCAB_SIZE = 2

TOKEN_IDS = st.integers(0, VOCAB_SIZE - 1)
BEGINNINGS = st.sampled_from(([], [0] * 2, [0] * 4, [0, 1] * 2, [0] * 8, [0, 1] * 4, [0] * 11))
PROMPTS = st.builds(
    lambda beginning, tail: (beginning + tail or [1])[:MAX_PROMPT_LEN],
    BEGINNINGS,
    st.lists(TOKEN_IDS, max_size=4),
)
SALTS = st.sampled_from(("", "", "", "salt"))


class Wish(NamedTuple):
    """A request, as a history draws it; `num_choices` answers to one prompt."""

    session_id: int
    prompt: list[int]
    max_tokens: int | None
    stop: list[int]
    num_choices: int
    priority: int
    cache_salt: str
    remaining_s: float | None
    may_exceed_pool: bool
    resume_len: int  # of the answer, known before
    age_s: float | None  # when it came before, by a session that was lost


WISHES = st.builds(
    Wish,
    session_id=st.integers(1, 2),
    prompt=PROMPTS,
    max_tokens=st.none() | st.integers(1, 8),
    stop=st.just([]) | st.lists(TOKEN_IDS, max_size=1),
    num_choices=st.sampled_from((1, 1, 1, 2, 3)),
    priority=st.sampled_from((0, 0, 0, -1, 1, 3)),
    cache_salt=SALTS,
    remaining_s=st.sampled_from((None, None, 0.0, 3.0)),
    may_exceed_pool=st.sampled_from((False, False, False, True)),
    resume_len=st.sampled_from((0, 0, 0, 1, 5)),
    age_s=st.sampled_from((None, None, None, 0.0, 2.0, 30.0)),
)
