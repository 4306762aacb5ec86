"""From the figures of the attention sweep to the tuning table."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from bench.gpu.attention_cases import BATCHES, Shape
from kernels.gpu.attention_tuning import TABLE


def winners_of(rows: list[dict[str, Any]], shape: Shape) -> dict[int, dict[str, Any]]:
    """By batch (0 in prefill), the config that is fastest over its loads, each weighing the same.

    Decode's loads weigh by how far they are above a plain read of the same bytes.
    """
    batches: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if all(row[name] == value for name, value in asdict(shape).items()):
            by_config = batches.setdefault(row["num_reqs"] if "read_us" in row else 0, {})
            by_config.setdefault(json.dumps(row["config"]), []).append(row)

    def cost(same: list[dict[str, Any]]) -> tuple[int, float]:
        ratios = [math.log(row["us"] / row.get("read_us", 1.0)) for row in same]
        return -len(ratios), sum(ratios)  # one that failed on a load has fewer

    return {
        batch: min(by_config.values(), key=cost)[0] for batch, by_config in sorted(batches.items())
    }


def new_table(figures: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tuning table: the winners of the shapes and batches that were measured, and what the
    present one has of others.
    """
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for section in ("decode", "prefill"):
        for shape in dict.fromkeys(
            Shape(row["head_dim"], row["num_heads"], row["num_kv_heads"])
            for row in figures[section]
        ):
            key = {"head_dim": shape.head_dim, "group": shape.group}
            new = [
                {
                    **key,
                    **({"max_reqs": BATCHES.get(batch, batch)} if batch else {}),
                    **row["config"],
                }
                for batch, row in winners_of(figures[section], shape).items()
            ]
            keys = [{**key, "max_reqs": entry.get("max_reqs")} for entry in new]
            entries = new + [e for e in table[section] if _key_of(e) not in keys]
            entries.sort(key=lambda e: (e["head_dim"], e["group"], e.get("max_reqs", 0)))
            table[section] = entries
    return table


def _key_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry.get(name) for name in ("head_dim", "group", "max_reqs")}
