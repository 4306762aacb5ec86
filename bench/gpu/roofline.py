"""A picture of bench/results/h200.json: what was reached, and the ceilings above it.

    python -m bench.gpu.roofline [--json PATH] [--png PATH]

Three parts, each only where there are figures for it: GB/s of kernels over the bytes that a call
moves, with the read and copy bandwidth of the card; TFLOP/s of kernels that compute, with what
matrix products reach; tokens per second of workloads as a share of `bench.gpu.limits`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.limits import MATMUL_FLOPS

H200 = Path(__file__).parents[1] / "results" / "h200.json"
MARKERS = "os^vD<>ph*X"
PART_INCHES = (11, 4.5)
Results = dict[str, Any]


class Reached(NamedTuple):
    """A kernel at a shape: bytes moved a call, and bytes a second in units of 1e9."""

    num_bytes: float
    gbps: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=H200, help="the figures")
    parser.add_argument("--png", type=Path, default=H200.with_suffix(".png"), help="the picture")
    args = parser.parse_args()
    draw(json.loads(args.json.read_text()), args.png)
    print(args.png)


def bandwidths(results: Results) -> dict[str, list[Reached]]:
    """By kernel, of those whose floor is memory."""
    reached: dict[str, list[Reached]] = defaultdict(list)
    for kernel in results.get("kernels", []):
        if kernel.get("gbps"):
            num_bytes = kernel["gbps"] * kernel["us"] * 1e3
            reached[kernel["name"]].append(Reached(num_bytes, kernel["gbps"]))
    return {name: sorted(points) for name, points in reached.items()}


def arithmetic(results: Results) -> dict[str, float]:
    """TFLOP/s by kernel and shape, of those whose floor is arithmetic."""
    return {
        f"{kernel['name']} {kernel['shape']}": kernel["tflops"]
        for kernel in results.get("kernels", [])
        if kernel.get("tflops")
    }


def shares(results: Results) -> dict[str, float]:
    """Of the limit, by model and workload."""
    return {
        f"{model} {workload}": figures["tok_s"] / figures["limit_tok_s"]
        for model, by_workload in results.get("workloads", {}).items()
        for workload, figures in by_workload.items()
        if "tok_s" in figures and figures.get("limit_tok_s")
    }


def draw(results: Results, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("the picture needs matplotlib: pip install -c constraints.txt -e '.[bench]'")
    parts: list[tuple[Callable[..., None], dict[str, Any]]] = [
        (_draw_bandwidths, bandwidths(results)),
        (_draw_arithmetic, arithmetic(results)),
        (_draw_shares, shares(results)),
    ]
    parts = [(part, figures) for part, figures in parts if figures]
    if not parts:
        sys.exit("there is nothing to draw")
    width, height = PART_INCHES
    figure = Figure(figsize=(width, height * len(parts)), layout="constrained")
    figure.suptitle(f"{results.get('card')}, commit {results.get('commit')}")
    for nth, (part, figures) in enumerate(parts, start=1):
        part(figure.add_subplot(len(parts), 1, nth), figures, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_bandwidths(axes: Any, figures: dict[str, list[Reached]], results: Results) -> None:
    for nth, (name, points) in enumerate(figures.items()):
        axes.plot(
            [point.num_bytes for point in points],
            [point.gbps for point in points],
            marker=MARKERS[nth % len(MARKERS)],
            linestyle="",
            color=f"C{nth % 10}",
            label=name,
        )
    for name in ("read_gbps", "copy_gbps"):
        if name in results:
            style = "-" if name == "read_gbps" else "--"
            axes.axhline(results[name], color="black", linewidth=1, linestyle=style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes a call", ylabel="GB/s")
    axes.set_xlim(left=1e3)
    axes.set_ylim(bottom=1)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _draw_arithmetic(axes: Any, figures: dict[str, float], results: Results) -> None:
    _bars(axes, figures, f"TFLOP/s of {MATMUL_FLOPS / 1e12:.0f}")
    axes.axvline(MATMUL_FLOPS / 1e12, color="black", linewidth=1)


def _draw_shares(axes: Any, figures: dict[str, float], results: Results) -> None:
    _bars(axes, figures, "tokens per second, share of the limit")
    axes.axvline(1, color="black", linewidth=1)


def _bars(axes: Any, figures: dict[str, float], label: str) -> None:
    bars = axes.barh(list(figures), list(figures.values()))
    axes.bar_label(bars, fmt="%.3g", padding=2, fontsize="x-small")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_xlabel(label)


if __name__ == "__main__":
    main()
