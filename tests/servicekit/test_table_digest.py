"""The digest in numpy is the one that the proto spells out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from servicekit.plan import Int32Array
from servicekit.table_digest import table_digest

WRAP = 2**64


def spelt_out(page_table: Int32Array, lengths: dict[int, int]) -> int:
    """`Result.table_digest` of runner.proto, word by word."""
    total = 0
    for row, length in lengths.items():
        for position in range(length):
            loc = int(page_table[row, position])
            x = row * 0x9E3779B97F4A7C15 + position * 0xC2B2AE3D27D4EB4F + loc * 0x165667B19E3779F9
            x %= WRAP
            total += (x ^ (x >> 32)) * 0xD6E8FEB86659FD93
    return total % WRAP


def digest_of(page_table: Int32Array, lengths: dict[int, int]) -> int:
    rows = np.array(list(lengths), dtype=np.int32)
    return table_digest(page_table, rows, np.array(list(lengths.values()), dtype=np.int32))


TABLES = arrays.arrays(np.int32, (5, 9), elements=st.integers(0, 2**31 - 1))
LENGTHS = st.dictionaries(st.integers(0, 4), st.integers(0, 9))


@settings(derandomize=True, deadline=None)
@given(TABLES, LENGTHS)
def test_it_is_what_the_proto_says(page_table: Int32Array, lengths: dict[int, int]) -> None:
    assert digest_of(page_table, lengths) == spelt_out(page_table, lengths)


@settings(derandomize=True, deadline=None)
@given(TABLES, LENGTHS)
def test_the_order_of_rows_does_not_matter(page_table: Int32Array, lengths: dict[int, int]) -> None:
    turned = dict(reversed(lengths.items()))
    assert digest_of(page_table, turned) == digest_of(page_table, lengths)


def test_what_no_row_holds_is_zero() -> None:
    page_table = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert digest_of(page_table, {}) == digest_of(page_table, {1: 0}) == 0


def test_an_entry_past_a_row_counts_for_nothing_and_one_inside_counts() -> None:
    page_table = np.arange(6, dtype=np.int32).reshape(2, 3)
    before = digest_of(page_table, {0: 2})
    page_table[0, 2] = 9
    assert digest_of(page_table, {0: 2}) == before
    page_table[0, 1] = 9
    assert digest_of(page_table, {0: 2}) != before


def test_rows_of_thousands_of_positions_and_of_few_beside_each_other() -> None:
    page_table = np.arange(3 * 3000, dtype=np.int32).reshape(3, 3000) * 7
    for lengths in ({0: 3000, 1: 1, 2: 257}, {0: 256, 2: 512}, {1: 255}):
        assert digest_of(page_table, lengths) == spelt_out(page_table, lengths)
