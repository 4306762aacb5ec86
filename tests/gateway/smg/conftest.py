"""What tests of the router's worker share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.smg.worker import Worker, served_worker
from tests.gateway.tiny_tokenizers import BACKENDS, save_model_dir


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    model_dir = save_model_dir(
        tmp_path / "model", BACKENDS["byte_level"](), chat_template="{{ messages }}"
    )
    async with served_worker(model_dir, tmp_path / "c") as worker:
        yield worker
