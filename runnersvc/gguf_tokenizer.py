"""The tokenizer that a GGUF file carries, as the files that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from servicekit.errors import SetupError

CONTROL_TOKEN = 3  # GGUF's token_type of special tokens


def write_tokenizer(fields: dict[str, Any], out_dir: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja.

    `fields` is the file's metadata. SetupError for kinds of tokenizer other than SmolLM2's
    byte-level BPE.
    """
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise SetupError(f"its tokenizer is of the kind {kind}; only ('gpt2', 'smollm') is known")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    # GGUF names the pre-tokenizer only: this is what "smollm" stands for.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, token_type in zip(tokens, types, strict=True)
            if token_type == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(out_dir / "tokenizer.json"))
    config = {
        "add_prefix_space": False,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
    }
    (out_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out_dir / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])
