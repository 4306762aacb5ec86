"""What a model directory says of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.served_model import ServedModel, check_served
from gateway.tokenizer import Tokenizer
from servicekit.errors import NotFound, Reason
from tests.gateway.tiny_tokenizers import byte_level_backend, save_model_dir


def read(model_dir: Path, **fields: Any) -> ServedModel:
    save_model_dir(model_dir, byte_level_backend(), **fields)
    return ServedModel.read(model_dir, "name", Tokenizer.load(model_dir))


def test_a_model_is_described_by_its_files(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "eos_token_id": [7, 5],
    }
    assert read(tmp_path, config=config, chat_template="{{ messages }}") == ServedModel(
        name="name",
        model_type="llama",
        architecture="LlamaForCausalLM",
        stored_dtype="bfloat16",
        vocab_size=1000,
        end_token_ids=(1, 5, 7),
        has_chat_template=True,
    )


def test_the_older_name_of_the_dtype_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, config={"torch_dtype": "float16"}).stored_dtype == "float16"


@pytest.mark.parametrize(
    "config", [{}, {"architectures": [], "dtype": None}, {"architectures": "x", "model_type": 3}]
)
def test_what_the_files_do_not_say_is_empty(tmp_path: Path, config: dict[str, Any]) -> None:
    model = read(tmp_path, config=config)
    assert (model.model_type, model.architecture, model.stored_dtype) == ("", "", "")
    assert not model.has_chat_template


def test_a_model_is_asked_for_by_its_name_or_by_none() -> None:
    check_served("", "tiny")
    check_served("tiny", "tiny")
    with pytest.raises(NotFound, match="model 'huge' is not served; 'tiny' is") as caught:
        check_served("huge", "tiny")
    assert (caught.value.reason, caught.value.metadata) == (
        Reason.MODEL_NOT_FOUND,
        {"field": "model"},
    )


def test_a_long_name_of_a_model_is_not_said_back_at_full_length() -> None:
    """With 9,000 characters of it the status was too long for its caller's gRPC, which saw
    RESOURCE_EXHAUSTED "metadata size exceeds hard limit" and no reason.
    """
    with pytest.raises(NotFound) as caught:
        check_served("m" * 9_000, "tiny")
    assert len(caught.value.message) < 200
    assert caught.value.message.endswith("is not served; 'tiny' is")
