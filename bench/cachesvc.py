"""The manager at the speed of arrays: what `cpu.json` keeps under `cachesvc`.

Medians in microseconds, p99 beside them; bytes a page. The tables show how each grows with its
size: admission with the prompt, eviction with what is evicted and not with the tree, a cycle with
the rows.
"""

from __future__ import annotations

import gc

import numpy as np

from bench.cycle import steady_decode
from bench.recording import record
from bench.tree_costs import admit_us, bytes_per_page, evict_us, match_us
from cachesvc.service import FULL_COLLECTIONS

ROUNDS, WARM_UP, STEPS = 3, 50, 1000
MILLION = 1_000_000


def main() -> None:
    figures: dict[str, object] = {}
    for page_size in (16, 1):
        _keep(figures, f"cycle_256_page{page_size}_us", cycle_us(256, page_size))
    _keep(figures, "admit_8192_us", admit_us(8192, 4096))
    _keep(figures, "evict_1000_of_100k_us", evict_us(1000, 100_000))
    _keep(figures, "evict_1_of_100k_used_again_us", evict_us(1, 100_000, used_again=True))
    _keep(figures, "match_100k_us", match_us(100_000, 1))
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
    """Cycles of a few rounds, with the garbage collector as cachesvc sets it."""
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    micros: list[float] = []
    for _ in range(ROUNDS):
        gc.collect()
        cycles = steady_decode(num_rows, page_size, WARM_UP + STEPS).cycles
        micros += [cycle.seconds * 1e6 for cycle in cycles][WARM_UP:]
    return micros


def _keep(figures: dict[str, object], name: str, micros: list[float]) -> None:
    figures[name] = _median(micros)
    figures[f"{name}_p99"] = round(float(np.percentile(micros, 99)), 1)


def _median(micros: list[float]) -> float:
    return round(float(np.median(micros)), 1)


if __name__ == "__main__":
    main()
