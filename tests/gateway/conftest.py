"""What tests of the public services share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.front import Front, served_front
from tests.gateway.tiny_tokenizers import BACKENDS, save_model_dir

TURNS = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}{% endfor %}"


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    model_dir = save_model_dir(
        tmp_path / "tokenizer", BACKENDS["byte_level"](), chat_template=TURNS
    )
    async with served_front(model_dir, tmp_path / "c") as front:
        yield front
