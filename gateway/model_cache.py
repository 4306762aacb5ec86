"""Where fetched models lie in the user's cache, and whether one is there in full."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from servicekit.errors import SetupError
from servicekit.model_dir import read_json_object

MANIFEST = "pagewire-manifest.json"
CHEAP_BYTES = (
    16 * 1024 * 1024
)  # a file up to here is checked by its content, a longer one by length


def models_dir(env: Mapping[str, str] = os.environ) -> Path:
    """$PAGEWIRE_CACHE, else pagewire in $XDG_CACHE_HOME or ~/.cache; there, models/."""
    if env.get("PAGEWIRE_CACHE"):
        return Path(env["PAGEWIRE_CACHE"]) / "models"
    base = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    return base / "pagewire" / "models"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(model_dir: Path, source: str) -> None:
    """Writes down every file of the directory; comes last, before the model is moved into place."""
    files = {
        path.name: {"length_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(model_dir.iterdir())
    }
    manifest = {"source": source, "files": files}
    (model_dir / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def damage(model_dir: Path) -> str | None:
    """What is wrong with a fetched model, None when all is there.

    Cheap: contents are compared up to CHEAP_BYTES, lengths beyond.
    """
    if not (model_dir / MANIFEST).is_file():
        return "it has no manifest" if model_dir.exists() else "it is not there"
    try:
        files = read_json_object(model_dir / MANIFEST)["files"]
        for name, expected in files.items():
            path = model_dir / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["length_bytes"]:
                return f"{name} has another length than it was fetched with"
            if path.stat().st_size <= CHEAP_BYTES and sha256_of(path) != expected["sha256"]:
                return f"{name} has other contents than it was fetched with"
    except (SetupError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    return None
