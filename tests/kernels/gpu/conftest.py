"""The kernels compiled on the GPU where there is one, else in Triton's interpreter on the CPU.

`pytest -m gpu` on a machine with a GPU runs these same tests compiled.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
assert HAS_GPU or os.environ.get("TRITON_INTERPRET") == "1", "tests/conftest.py sees to it"

HERE = Path(__file__).parent
AS_ON_A_GPU = "ignore:.* encountered in .*:RuntimeWarning"  # numpy warns where inf or NaN is meant


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.torch)
            item.add_marker(pytest.mark.filterwarnings(AS_ON_A_GPU))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where tensors of a kernel live."""
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture(scope="session")
def cuda(device: torch.device) -> torch.device:
    """The GPU, for what the interpreter cannot show: graphs, offsets past 2 GiB, many draws."""
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    return device
