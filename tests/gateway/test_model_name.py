"""From a name to a directory. No network: the hub is offline, its cache a directory here."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.model_cache import models_dir, write_manifest
from gateway.model_name import resolve
from servicekit.errors import SetupError
from servicekit.model_dir import model_name

SHORT = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def _only_this_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "cache"))
    # Both are read from the environment when the library is imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def put_into_the_cache() -> Path:
    model_dir = models_dir() / SHORT
    model_dir.mkdir(parents=True)
    (model_dir / "config.json").write_text("{}")
    write_manifest(model_dir, "test")
    return model_dir


def test_a_directory_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(tmp_path / "mine")) == tmp_path / "mine"
    assert resolve("mine") == Path("mine")
    assert resolve("~/mine") == tmp_path / "mine"


def test_a_short_name_is_a_fetched_model(tmp_path: Path) -> None:
    model_dir = put_into_the_cache()
    assert resolve(SHORT) == model_dir == tmp_path / "cache" / "models" / SHORT


def test_a_short_name_that_is_not_fetched_says_what_to_run() -> None:
    with pytest.raises(SetupError, match=f"it is not there: run `pagewire fetch {SHORT}`"):
        resolve(SHORT)


def test_a_fetched_model_that_lost_a_file_says_what_to_run() -> None:
    (put_into_the_cache() / "config.json").unlink()
    with pytest.raises(SetupError, match=r"config.json is missing: run `pagewire fetch"):
        resolve(SHORT)


@pytest.mark.parametrize("name", ["/no/such", "./no-such", "../no/such", "~/no-such", "a/b/c", ""])
def test_a_path_that_is_no_directory_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(SetupError, match="does not exist"):
        resolve(name)


def test_a_hub_model_in_the_hubs_cache_is_found_offline(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--org--tiny"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    assert resolve("org/tiny") == snapshot
    assert model_name(snapshot) == "org/tiny"


def test_a_hub_model_that_is_out_of_reach_is_one_clear_sentence() -> None:
    with pytest.raises(SetupError, match="org/tiny is not in the hub's local cache") as caught:
        resolve("org/tiny")
    assert "\n" not in str(caught.value)


def test_a_name_that_no_model_can_have_is_refused() -> None:
    with pytest.raises(SetupError, match="neither a directory nor a model's name"):
        resolve("no model/has spaces")


def test_the_cache_lies_where_the_environment_says(tmp_path: Path) -> None:
    assert models_dir({"PAGEWIRE_CACHE": "/p", "XDG_CACHE_HOME": "/x"}) == Path("/p/models")
    assert models_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/pagewire/models")
    assert models_dir({}) == Path.home() / ".cache" / "pagewire" / "models"
