"""What clients may know of the model that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.tokenizer import Tokenizer
from servicekit.errors import NotFound, Reason
from servicekit.model_dir import read_config
from servicekit.quoting import quoted


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What its directory says. An empty text: config.json does not say."""

    name: str  # what requests call it by
    model_type: str
    architecture: str
    stored_dtype: str  # of the weights; the runner may compute in another
    vocab_size: int
    end_token_ids: tuple[int, ...]
    has_chat_template: bool

    @classmethod
    def read(cls, model_dir: Path, name: str, tokenizer: Tokenizer) -> ServedModel:
        """Errors: SetupError for a directory without a usable config.json."""
        config = read_config(model_dir)
        architectures = config.get("architectures")
        first = architectures[0] if isinstance(architectures, list) and architectures else None
        return cls(
            name=name,
            model_type=_text(config.get("model_type")),
            architecture=_text(first),
            stored_dtype=_text(config.get("dtype") or config.get("torch_dtype")),
            vocab_size=tokenizer.vocab_size,
            end_token_ids=tuple(sorted(tokenizer.end_token_ids)),
            has_chat_template=bool(tokenizer.template_owner.chat_template),
        )


def check_served(asked: str, served: str, field: str = "model") -> None:
    """Errors: NotFound MODEL_NOT_FOUND when `asked` names another model; empty is any."""
    if asked not in ("", served):
        raise NotFound(
            Reason.MODEL_NOT_FOUND,
            f"{field} {quoted(asked)} is not served; {served!r} is",
            field=field,
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
