"""What the runner process says before it takes an address, and with weights of no checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runnersvc.config import RunnerConfig
from runnersvc.ops import check_kernels
from runnersvc.server import checked, load
from servicekit.errors import SetupError
from tests.runnersvc.tiny_llama import Row, greedy, make_plan, random_pages, save_tiny_qwen3

pytestmark = pytest.mark.torch
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A config.json and no weights."""
    save_tiny_qwen3(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    return tmp_path


@no_gpu
def test_without_a_gpu_cuda_is_refused_in_one_sentence_before_the_address_is_taken(
    model_dir: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "runner.sock"
    settings = ["--listen", f"unix:{socket}", "--model", str(model_dir), "--device", "cuda"]
    ended = subprocess.run(
        [sys.executable, "-m", "runnersvc", *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "runnersvc: --device is cuda, and torch finds no GPU: serve with --device cpu\n"
    )
    assert not socket.exists()


def test_a_model_that_cannot_be_run_is_refused_before_the_address_is_taken(
    model_dir: Path, tmp_path: Path
) -> None:
    config_path = model_dir / "config.json"
    config = json.loads(config_path.read_text()) | {"use_sliding_window": True}
    config_path.write_text(json.dumps(config))
    with pytest.raises(SetupError, match="use_sliding_window"):
        checked(RunnerConfig(listen=f"unix:{tmp_path}/runner.sock", model=str(model_dir)))


def test_what_has_no_gpu_kernel_is_refused_by_name() -> None:
    pytest.importorskip("triton")
    check_kernels(128, 5, torch.bfloat16)
    with pytest.raises(SetupError, match="head_dim 112 has no GPU kernel"):
        check_kernels(112, 2, torch.bfloat16)
    with pytest.raises(SetupError, match="float64 has no GPU kernel"):
        check_kernels(128, 2, torch.float64)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"gpu_memory_fraction": 0.0}, "--gpu-memory-fraction is 0.0; it must be above 0"),
        ({"gpu_memory_fraction": -1.0}, "--gpu-memory-fraction is -1.0"),
        ({"gpu_memory_fraction": 1.5}, "at most 1"),
        ({"load_format": "gguf"}, "--load-format is gguf; it must be one of safetensors, dummy"),
        ({"max_graph_rows": -1}, "--max-graph-rows is -1; it must be at least 0"),
        ({"max_step_tokens": 0}, "--max-step-tokens is 0; it must be at least 1"),
        ({"dtype": "int8"}, "--dtype is int8"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting: dict[str, object], says: str) -> None:
    with pytest.raises(SetupError, match=says):
        RunnerConfig(listen="h:1", model="m", **setting)  # type: ignore[arg-type]


def test_the_dtype_is_the_device_s_unless_it_is_given() -> None:
    assert RunnerConfig(listen="h:1", model="m").dtype_name == "float32"
    assert RunnerConfig(listen="h:1", model="m", device="cuda").dtype_name == "bfloat16"
    assert RunnerConfig(listen="h:1", model="m", dtype="float16").dtype_name == "float16"


def test_dummy_weights_need_no_checkpoint_and_are_the_same_each_time(model_dir: Path) -> None:
    config = RunnerConfig(
        listen="h:1", model=str(model_dir), load_format="dummy", page_size=4, num_pages=100
    )

    def sampled() -> list[int]:
        model, description = load(config, checked(config))
        assert description.num_pages == 100
        assert description.max_step_tokens == 2048
        first = make_plan(
            [Row(0, 0, [5, 6, 7])], opens=[greedy(0)], write=random_pages([0], page_size=4)
        )
        return [int(model.execute(plan)[0]) for plan in (first, make_plan([Row(0, 3)]))]

    assert sampled() == sampled()


def test_without_weights_a_checkpoint_is_missed_by_name(model_dir: Path) -> None:
    config = RunnerConfig(listen="h:1", model=str(model_dir))
    with pytest.raises(SetupError, match=r"has no \*\.safetensors file"):
        load(config, checked(config))
