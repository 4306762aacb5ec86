"""Kills, stops and cuts under load, with another seed each time: `make chaos`.

    python -m tests.chaos [--seed N] [--model tiny] [--faults runner=5,stream=5]

The list of faults and the list of requests are functions of the seed; the moments depend on the
machine. Findings end the run with 1, and leave the directory of all logs; figures of a run that
found none go to bench/results/chaos.json, unless --faults or --model made it a part.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.recording import record
from gateway.model_name import resolve
from tests.chaos.chaos import Outcome, run_chaos
from tests.chaos.faults import faults_of
from tests.chaos.figures import figures_of, missed, table
from tests.chaos.served import Served, smollm2_served, tiny_served
from tests.e2e.tiny_model import make_tiny_model

COUNTS = {
    "tiny": {"runner": 54, "manager": 54, "stream": 56, "gateway": 27},
    "smollm2": {"runner": 8, "manager": 8, "stream": 8, "gateway": 4},
}
MOST_SHOWN, LONGEST_SHOWN = 20, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--model", choices=sorted(COUNTS), help="this one alone")
    parser.add_argument("--faults", type=_counts, help="other counts: runner=5,manager=5")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began_s = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="pw-"))
    outcomes = []
    for name in [given.model] if given.model else list(COUNTS):
        run_dir = root / name
        run_dir.mkdir()
        faults = faults_of(given.seed, given.faults or COUNTS[name])
        served = _served(name, root, given.seed)
        outcomes.append(run_chaos(served, faults, given.seed, run_dir, _say))
        if outcomes[-1].findings:
            break
    figures = figures_of(given.seed, round(time.monotonic() - began_s), outcomes)
    is_whole = not (given.model or given.faults)
    _end_where_wrong(given.seed, root, outcomes, missed(figures) if is_whole else [])
    if is_whole:
        record("chaos.json", "chaos", figures)
    else:
        print("\n".join(f"{name:28} {value}" for name, value in figures.items()))
    print(table(figures))
    shutil.rmtree(root)


def _end_where_wrong(
    seed: int, root: Path, outcomes: list[Outcome], not_reached: list[str]
) -> None:
    """Of wrong answers only the count: each was said when it came."""
    findings = [finding for outcome in outcomes for finding in outcome.findings] + not_reached
    if findings:
        (root / "findings.txt").write_text("\n".join(findings) + "\n")
        answers = {finding for outcome in outcomes for finding in outcome.judged.findings}
        others = [finding[:LONGEST_SHOWN] for finding in findings if finding not in answers]
        shown = "\n".join([f"{len(answers)} wrong answers", *others[:MOST_SHOWN]])
        sys.exit(f"seed {seed}: {len(findings)} findings, they and all logs are in {root}\n{shown}")


def _served(name: str, root: Path, seed: int) -> Served:
    if name == "tiny":
        return tiny_served(make_tiny_model(root / "model"), seed)
    return smollm2_served(resolve("smollm2-135m-instruct"), seed)


def _counts(text: str) -> Mapping[str, int]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {service: int(count) for service, _, count in pairs}


def _say(line: str) -> None:
    print(line[:LONGEST_SHOWN], flush=True)


if __name__ == "__main__":
    main()
