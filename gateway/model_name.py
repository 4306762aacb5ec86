"""From what a user calls a model to the directory that holds it."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.fetchable import FETCHABLE
from gateway.model_cache import damage, models_dir
from servicekit.errors import SetupError

HUB_PATTERNS = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer*",
    "*.model",
    "merges.txt",
    "vocab.txt",
]


def resolve(name: str) -> Path:
    """The directory of a model; tried in order: a directory, a fetched model's short name, a hub
    name.

    A hub name is downloaded (or found in the hub's own cache; HF_HUB_OFFLINE and its kin apply),
    weights as safetensors only. Every failure is a SetupError of one sentence.
    """
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if name in FETCHABLE:
        return _fetched(name)
    if _looks_like_a_path(name):
        raise SetupError(f"the model directory {name!r} does not exist")
    return _from_hub(name)


def _fetched(name: str) -> Path:
    path = models_dir() / name
    wrong = damage(path)
    if wrong is not None:
        raise SetupError(f"the model {name} cannot be used, {wrong}: run `pagewire fetch {name}`")
    return path


def _looks_like_a_path(name: str) -> bool:
    return not name or name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_PATTERNS, ignore_patterns=["*/*"]))
    except HFValidationError as error:
        raise SetupError(f"{name!r} is neither a directory nor a model's name") from error
    except GatedRepoError as error:
        raise SetupError(
            f"the model {name} is gated: accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise SetupError(f"the hub knows no model {name}, or it is private; {_others()}") from error
    except LocalEntryNotFoundError as error:
        raise SetupError(
            f"the model {name} is not in the hub's local cache, "
            f"and the hub is offline or out of reach; {_others()}"
        ) from error
    except Exception as error:  # the hub's client lets those of its HTTP client through
        reason = str(error).split("\n")[0] or type(error).__name__
        raise SetupError(f"the model {name} cannot be downloaded from the hub: {reason}") from error


def _others() -> str:
    return f"give a directory, or fetch one of: {', '.join(FETCHABLE)}"
