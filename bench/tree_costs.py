"""What the prefix tree costs: admission, eviction, matching, memory. Microseconds and bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from bench.cycle import description, random_ids, submission
from cachesvc.core import Core
from cachesvc.eviction_order import LeastRecentlyUsed
from cachesvc.limits import Limits
from cachesvc.manager import CacheManager
from cachesvc.prefix_tree import PrefixTree
from servicekit.plan import Attached, Int32Array, Result
from servicekit.plan_twin import plan_request

PAGE_SIZE = 16
BRANCHES = 1000  # of the trees whose memory is measured


def put(tree: PrefixTree, ids: Int32Array, first_page: int, num_cached: int = 0) -> int:
    """A sequence of full pages comes and goes; pages from `first_page` on are its own. Returns the
    next page that is not used.
    """
    key = ids.tobytes()
    num_pages = len(ids) // tree.page_size
    tail = tree.lock(tree.match(key, "", num_pages))
    locs = np.arange(first_page, first_page + num_pages - num_cached, dtype=np.int32)
    at = num_cached * tree.page_size * 4
    tree.unlock(tree.insert(tail, key[at:], (locs * tree.page_size).tobytes()).tail)
    return first_page + num_pages - num_cached


def admit_us(prompt_len: int, hit_len: int, rounds: int = 40) -> list[float]:
    """From the submit to the encoded plan that opens the row, with `hit_len` tokens cached."""
    rng = np.random.default_rng(0)
    runner = description(8, PAGE_SIZE, 8 * (prompt_len // PAGE_SIZE + 2), prompt_len + 16)
    core = Core(Limits(step_budget_tokens=1 << 20, credits=2))
    core.attached(Attached(runner, "boot", 0, ""))
    common = random_ids(rng, hit_len)
    seconds: list[float] = []
    for key in range(1, rounds + 1):
        wanted = submission(key, np.concatenate((common, random_ids(rng, prompt_len - hit_len))))
        began = time.perf_counter()
        core.submit(1, wanted)
        plan = core.next_plan()
        assert plan is not None
        plan_request(plan).SerializeToString()
        seconds.append(time.perf_counter() - began)
        assert key == 1 or plan.step_cached_lens.tolist() == [hit_len]
        core.result(Result(plan.plan_id, random_ids(rng, 1), 0, 0, core.stream.due_digest))
        core.cancel(1, key)
        closing = core.next_plan()
        assert closing is not None
        core.result(Result(closing.plan_id, random_ids(rng, 0), 0, 0, core.stream.due_digest))
        core.take_outputs()
    return [second * 1e6 for second in seconds[2:]]


def evict_us(
    count: int, num_pages: int, rounds: int = 7, *, used_again: bool = False
) -> list[float]:
    """`count` of `num_pages` pages that lie in as many leaves, each of them hit again or not."""
    micros: list[float] = []
    for nth in range(rounds):
        tree = PrefixTree(num_pages, PAGE_SIZE, LeastRecentlyUsed())
        rng = np.random.default_rng(nth)
        page = 0
        sequences = [random_ids(rng, PAGE_SIZE) for _ in range(num_pages)]
        for ids in sequences:
            page = put(tree, ids, page)
        for ids in sequences if used_again else ():
            tree.unlock(tree.lock(tree.match(ids.tobytes(), "", 1)))
        began = time.perf_counter()
        tree.evict(count)
        micros.append((time.perf_counter() - began) * 1e6)
    return micros


def match_us(num_tokens: int, page_size: int, rounds: int = 50) -> list[float]:
    """A sequence of `num_tokens`, all of it in a compressed chain: ids to first locs."""
    rng = np.random.default_rng(0)
    tree = PrefixTree(num_tokens // page_size, page_size, LeastRecentlyUsed())
    ids = random_ids(rng, num_tokens)
    put(tree, ids, 0)
    micros: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        match = tree.match(ids.tobytes(), "", num_tokens // page_size)
        locs = match.locs
        micros.append((time.perf_counter() - began) * 1e6)
        assert len(locs) == num_tokens // page_size
    return micros


def bytes_per_page(node_pages: int, num_pages: int) -> float:
    """Memory that a manager takes for each cached page, all its arrays included: the difference in
    resident memory before there is a manager and after `num_pages` are in nodes of `node_pages`.

    Measured in a process of its own. Two levels: a stem for each of a thousand branches, leaves on
    it.
    """
    command = [sys.executable, "-m", "bench.tree_costs", str(node_pages), str(num_pages)]
    told = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True
    )
    return float(told.stdout)


def _bytes_per_page_here(node_pages: int, num_pages: int) -> float:
    rng = np.random.default_rng(0)
    random_ids(rng, PAGE_SIZE)
    before = _resident_bytes()
    runner = description(1, PAGE_SIZE, num_pages, 1024)
    core = Core(Limits(step_budget_tokens=1024, credits=2))
    core.attached(Attached(runner, "boot", 0, ""))
    assert core.scheduler is not None
    manager: CacheManager = core.scheduler.manager
    manager.pool.allocate(num_pages)
    manager.filled_by[:] = 1
    page, node_len = 0, node_pages * PAGE_SIZE
    leaves = num_pages // node_pages // BRANCHES - 1
    for _ in range(BRANCHES):
        stem = random_ids(rng, node_len)
        page = put(manager.tree, stem, page)
        for _ in range(leaves):
            sequence = np.concatenate((stem, random_ids(rng, node_len)))
            page = put(manager.tree, sequence, page, num_cached=node_pages)
    assert manager.tree.evictable_count == num_pages
    return (_resident_bytes() - before) / num_pages


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS in /proc/self/status")


if __name__ == "__main__":
    print(_bytes_per_page_here(int(sys.argv[1]), int(sys.argv[2])))
