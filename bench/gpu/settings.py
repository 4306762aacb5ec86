"""How the services of a benchmark are started."""

from __future__ import annotations

import argparse
import shlex
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from bench.gpu.limits import READ_GBPS
from bench.gpu.results import H200
from bench.gpu.workloads import NUM_ROWS, STEP_BUDGET_TOKENS
from bench.processes import BenchError

MODELS = Path(__file__).parents[1] / "models"
MAX_SEQ_LEN = 4096


def new_parser(doc: str) -> argparse.ArgumentParser:
    """With the options that all benchmarks of services have."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=H200, help="where the figures go")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--credits", type=int, help="plans ahead of their results")
    parser.add_argument(
        "--runner-args", default="", metavar="'--NAME VALUE ...'", help="further runner settings"
    )
    return parser


def runner_settings(model_dir: Path, args: argparse.Namespace) -> list[str]:
    """Of `python -m runnersvc`, but for --listen: weights are random, config.json is enough."""
    return [
        "--model", str(model_dir),
        "--load-format", "dummy",
        "--device", args.device,
        "--dtype", "bfloat16" if args.device == "cuda" else "float32",
        "--max-running-reqs", str(NUM_ROWS),
        "--max-seq-len", str(MAX_SEQ_LEN),
        "--max-step-tokens", str(STEP_BUDGET_TOKENS),
        *shlex.split(args.runner_args),
    ]  # fmt: skip


def cache_settings(args: argparse.Namespace) -> list[str]:
    """Of `python -m cachesvc`, but for addresses."""
    given = [] if args.credits is None else ["--credits", str(args.credits)]
    return ["--step-budget-tokens", str(STEP_BUDGET_TOKENS), *given]


def ceilings(device: str) -> dict[str, float]:
    """read_gbps and copy_gbps of this card now; without one nothing but a read_gbps to go on with.

    Measured in a process that ends: it leaves the card's memory to the services. Errors: BenchError
    where there is no card.
    """
    if device == "cpu":
        return {"read_gbps": READ_GBPS}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured_ceilings).result()


def _measured_ceilings() -> dict[str, float]:
    import torch

    from bench.gpu.kernels import measure_ceilings

    if not torch.cuda.is_available():
        raise BenchError("torch finds no GPU; to try the benchmark without one, --device cpu")
    return measure_ceilings()
