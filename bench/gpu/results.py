"""bench/results/h200.json: what was measured on one card, and with what."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

H200 = Path(__file__).parents[1] / "results" / "h200.json"


def record_kernels(path: Path, ceilings: dict[str, float], entries: list[dict[str, Any]]) -> None:
    """Writes `entries`, each with a name and a shape, over those of the same name and shape.

    What else is kept comes from `path`, or if there is none yet from bench/results. `ceilings` are
    read_gbps and copy_gbps of the same run; entries of other runs keep the floors that they were
    measured against.
    """
    results = _kept(path) | _measured_with(ceilings)
    new = {(entry["name"], entry["shape"]) for entry in entries}
    kept = [old for old in results.get("kernels", []) if (old["name"], old["shape"]) not in new]
    results["kernels"] = sorted(kept + entries, key=lambda entry: entry["name"])
    _write(path, results)


def record_workloads(
    path: Path, ceilings: dict[str, float], figures: dict[str, dict[str, dict[str, Any]]]
) -> None:
    """Writes `figures`, by model and workload, over those of the same names; a figure that they do
    not have stays. What else is kept, and what `ceilings` are, is as in `record_kernels`.
    """
    results = _kept(path) | _measured_with(ceilings)
    for model, by_workload in figures.items():
        of_model = results.setdefault("workloads", {}).setdefault(model, {})
        for workload, measured in by_workload.items():
            of_model[workload] = of_model.get(workload, {}) | measured
    _write(path, results)


def _kept(path: Path) -> dict[str, Any]:
    old_path = path if path.exists() else H200
    results: dict[str, Any] = json.loads(old_path.read_text()) if old_path.exists() else {}
    return results


def _measured_with(ceilings: dict[str, float]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
        **{name: round(gbps, 1) for name, gbps in ceilings.items()},
    }


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def commit() -> str:
    """The commit that is measured; `unknown` in a copy without history."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
