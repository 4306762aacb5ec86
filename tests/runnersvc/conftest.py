from __future__ import annotations

import pytest

try:
    import torch

    HAS_GPU = torch.cuda.is_available()
except ImportError:  # where only the fake runner is tested
    HAS_GPU = False


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=(
                pytest.mark.gpu,
                pytest.mark.skipif(not HAS_GPU, reason="needs a GPU"),
            ),
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen
