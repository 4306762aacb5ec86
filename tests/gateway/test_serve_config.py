"""Settings of `pagewire serve` reach the services that own them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cachesvc.config import CacheConfig
from gateway.config import GatewayConfig
from gateway.serve_config import (
    CACHE_NAMES,
    CACHE_SETTINGS,
    GATEWAY_SETTINGS,
    RUNNER_NAMES,
    RUNNER_SETTINGS,
    ServeConfig,
)
from gateway.supervisor import Supervisor
from runnersvc.config import RunnerConfig
from servicekit.config import read_settings

VALUES = {
    "device": "cuda",
    "dtype": "bfloat16",
    "load_format": "dummy",
    "gpu_memory_fraction": 0.5,
    "grace_s": 3.0,
    "aging_s": 2.0,
    "served_name": "x",
    "record": "r",
    "api_key_file": "k",
    "tls_cert": "c",
    "tls_key": "c",
    "tls_client_ca": "c",
    "smg": True,
}
METRICS = {"cache_metrics": "h:1", "runner_metrics": "h:2"}


@pytest.mark.parametrize(
    ("names", "renamed", "kind", "required"),
    [
        (RUNNER_SETTINGS, RUNNER_NAMES, RunnerConfig, ["--listen", "a", "--model", "m"]),
        (CACHE_SETTINGS, CACHE_NAMES, CacheConfig, ["--listen", "a", "--runner", "r"]),
        (GATEWAY_SETTINGS, {}, GatewayConfig, ["--listen", "a", "--cache", "c", "--model", "m"]),
    ],
)
def test_each_is_a_setting_of_its_service(
    names: tuple[str, ...], renamed: dict[str, str], kind: type[Any], required: list[str]
) -> None:
    for name in names:
        value = (VALUES | METRICS).get(name, 2048)
        arguments = ServeConfig(**{name: value}).arguments(names, renamed)
        config = read_settings(kind, required + arguments, prog="p", description="d")
        assert getattr(config, renamed.get(name, name)) == value


def test_what_is_not_given_is_left_to_the_service() -> None:
    config = ServeConfig(cache_metrics="h:1")
    assert config.arguments(RUNNER_SETTINGS, RUNNER_NAMES) == []
    assert config.arguments(GATEWAY_SETTINGS, {}) == []
    assert config.arguments(CACHE_SETTINGS, CACHE_NAMES) == ["--metrics", "h:1"]


@pytest.mark.parametrize(
    ("given", "passed"),
    [({}, ["127.0.0.1:8000"]), ({"http": "h:1"}, ["h:1"]), ({"http": "off"}, [])],
)
async def test_the_openai_api_is_on_unless_it_is_switched_off(
    given: dict[str, str], passed: list[str]
) -> None:
    supervisor = Supervisor(Path("model"), ServeConfig(socket_dir="/nowhere", **given))
    command = supervisor._commands["gateway"]
    await supervisor.stop()
    assert [value for name, value in pairwise(command) if name == "--http"] == passed
