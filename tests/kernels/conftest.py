from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_random_tensors_in_any_order() -> None:
    torch.manual_seed(0)
