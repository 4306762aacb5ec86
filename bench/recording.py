"""Where figures are kept: one JSON file a device, one section a benchmark."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def record(file_name: str, section: str, figures: dict[str, Any]) -> None:
    """Replace `section` of bench/results/`file_name`, with date, commit and device beside the
    figures, and print it.
    """
    path = RESULTS / file_name
    results = json.loads(path.read_text()) if path.exists() else {}
    kept = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "device": _device(),
        **figures,
    }
    results[section] = kept
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    for name, value in kept.items():
        print(f"{section}.{name:22} {value}")


def _commit() -> str:
    """The commit that was measured; marked when the tree differs from it."""
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ":!bench/results"],
        cwd=here.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return commit.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _device() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(models)} x {models[0]}" if models else platform.processor()
