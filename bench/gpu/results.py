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
    old_path = path if path.exists() else H200
    results = json.loads(old_path.read_text()) if old_path.exists() else {}
    results |= {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    results |= {name: round(gbps, 1) for name, gbps in ceilings.items()}
    new = {(entry["name"], entry["shape"]) for entry in entries}
    kept = [old for old in results.get("kernels", []) if (old["name"], old["shape"]) not in new]
    results["kernels"] = sorted(kept + entries, key=lambda entry: entry["name"])
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
