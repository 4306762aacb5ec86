"""Token ids from outside, checked: the same rule wherever a request enters."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from servicekit.errors import InvalidArgument, Reason


def check_token_ids(name: str, token_ids: ArrayLike, vocab_size: int) -> None:
    """Errors: InvalidArgument TOKEN_OUT_OF_VOCAB, naming the field `name` and the first bad id."""
    ids = np.asarray(token_ids, dtype=np.int64)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        raise InvalidArgument(
            Reason.TOKEN_OUT_OF_VOCAB,
            f"{name} holds token id {outside[0]}; ids go from 0 to {vocab_size - 1}",
            field=name,
        )
