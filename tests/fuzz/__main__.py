"""Bad input for long, with another seed each time: `make fuzz`.

    python -m tests.fuzz [--seed N] [--grpc 16000] [--raw-http 2000] [--examples 250]

Findings are printed with the seed, and end the run with 1; figures of a run that found none go to
bench/results/fuzz.json.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path

from bench.recording import record
from tests.fuzz.fuzz import Counts, Outcome, fuzz
from tests.fuzz.fuzzed_system import FuzzedSystem, fuzzed_system

MOST_SHOWN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--grpc", type=int, default=16_000)
    parser.add_argument("--raw-http", type=int, default=2_000)
    parser.add_argument("--examples", type=int, default=250)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began_s = time.monotonic()
    counts = Counts(given.grpc, given.raw_http, given.examples)
    with tempfile.TemporaryDirectory(prefix="pw-") as run_dir, fuzzed_system(Path(run_dir)) as each:
        outcome = asyncio.run(fuzz(each, given.seed, counts))
        if outcome.troubles:
            shown = "\n".join(outcome.troubles[:MOST_SHOWN])
            sys.exit(f"seed {given.seed}: {len(outcome.troubles)} findings\n{shown}")
        seconds = round(time.monotonic() - began_s)
        record("fuzz.json", "fuzz", figures(given.seed, seconds, outcome, each))


def figures(seed: int, seconds: int, outcome: Outcome, system: FuzzedSystem) -> dict[str, object]:
    codes = outcome.codes
    return {
        "seed": seed,
        "seconds": seconds,
        "inputs": codes.total(),
        "refused": outcome.refused,
        "inputs_by_kind": outcome.kinds,
        "codes": dict(sorted(codes.items())),
        "internal": codes["INTERNAL"] + codes["UNKNOWN"],
        "server_errors": sum(count for code, count in codes.items() if code.startswith("5")),
        "deaths": len(system.deaths),
        "violations": len(system.violations()),
        "neighbour_answers": outcome.heard.answers,
        "neighbour_others": outcome.heard.others,
    }


if __name__ == "__main__":
    main()
