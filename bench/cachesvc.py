"""The manager at the speed of arrays: what `cpu.json` keeps under `cachesvc`.

Medians in microseconds, p99 beside them, of the quietest of a few rounds that are spread over the
run: other work on the machine only adds. `_rounds` are the medians of all of them. Bytes a page.
The tables show how each grows with its size: admission with the prompt, eviction with what is
evicted and not with the tree, a cycle with the rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.cycle import steady_decode
from bench.recording import record
from bench.tree_costs import admit_us, bytes_per_page, evict_us, match_us
from cachesvc.service import FULL_COLLECTIONS

ROUNDS, WARM_UP, STEPS = 4, 50, 1500
MILLION = 1_000_000


def main() -> None:
    figures = _measured(
        {
            "cycle_256_page16_us": partial(cycle_us, 256, 16),
            "cycle_256_page1_us": partial(cycle_us, 256, 1),
            "admit_8192_us": partial(admit_us, 8192, 4096),
            "evict_1000_of_100k_us": partial(evict_us, 1000, 100_000, 5),
            "evict_1_of_100k_used_again_us": partial(evict_us, 1, 100_000, 3, used_again=True),
            "match_100k_us": partial(match_us, 100_000, 1),
        }
    )
    for node_pages in (1, 8):
        figures[f"bytes_per_page_{node_pages}"] = round(bytes_per_page(node_pages, MILLION))
    figures["cycle_page16_us_by_rows"] = {
        str(rows): _median(cycle_us(rows, 16)) for rows in (16, 64, 256, 1024)
    }
    figures["admit_us_by_prompt"] = {
        str(length): _median(admit_us(length, length // 2)) for length in (512, 2048, 8192, 32_768)
    }
    figures["evict_us_by_count_of_100k"] = {
        str(count): _median(evict_us(count, 100_000, rounds=3)) for count in (10, 100, 1000, 10_000)
    }
    figures["evict_1000_us_by_tree"] = {
        str(pages): _median(evict_us(1000, pages, rounds=3)) for pages in (2000, 20_000, 200_000)
    }
    record("cpu.json", "cachesvc", figures)


def cycle_us(num_rows: int, page_size: int) -> list[float]:
    """Cycles with the garbage collector as cachesvc sets it."""
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    gc.collect()
    cycles = steady_decode(num_rows, page_size, WARM_UP + STEPS).cycles
    return [cycle.seconds * 1e6 for cycle in cycles][WARM_UP:]


def _measured(measures: dict[str, Callable[[], list[float]]]) -> dict[str, object]:
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(ROUNDS)]
    figures: dict[str, object] = {}
    for name in measures:
        quietest = min((of_round[name] for of_round in rounds), key=_median)
        figures[name] = _median(quietest)
        figures[f"{name}_p99"] = round(float(np.percentile(quietest, 99)), 1)
        figures[f"{name}_rounds"] = [_median(of_round[name]) for of_round in rounds]
    return figures


def _median(micros: list[float]) -> float:
    return round(float(np.median(micros)), 1)


if __name__ == "__main__":
    main()
