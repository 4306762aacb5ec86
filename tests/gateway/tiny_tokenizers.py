"""Small tokenizers of the two kinds that matter for text, and the model directory around one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from gateway.tokenizer import Tokenizer

SPECIALS = ["<s>", "</s>", "<|end|>"]
KOREAN, THAI, EMOJI, CHINESE = "안녕하세요 세계", "สวัสดีชาวโลก", "👩🏽‍🚀 go 👍🏿", "你好，世界"
ENGLISH = "The quick brown fox jumps over the lazy dog. Hello world"


def byte_level_backend() -> Backend:
    """GPT-2's kind: any byte is a token, so characters beyond ASCII span 2 to 4 tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=285, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    # Few merges: they lie inside characters and across their borders, and none makes a word.
    backend.train_from_iterator([ENGLISH, "안개 녕변 하늘 세상 요새", THAI], trainer)
    backend.add_tokens([AddedToken("<think>", special=False)])
    return backend


def byte_fallback_backend() -> Backend:
    """Llama 2's kind: ▁ for a space, one put before the text, <0xNN> for what has no token."""
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    pieces = ["▁", *"Helowrdtspac,.xé好", "\n", "▁w", "▁t", "el", "Hel", "Hello", "lo", "or", "▁▁"]
    pieces += ["▁wor", "▁world", "ld", "▁tw", "o", "▁two"]
    vocab: dict[str, int] = {}
    for token in ["<unk>", *SPECIALS, *byte_tokens, *pieces]:
        vocab.setdefault(token, len(vocab))
    merges = [
        ("▁", "w"),
        ("▁", "t"),
        ("e", "l"),
        ("H", "el"),
        ("l", "o"),
        ("Hel", "lo"),
        ("o", "r"),
    ]
    merges += [("▁", "▁"), ("▁w", "or"), ("l", "d"), ("▁wor", "ld"), ("▁t", "w"), ("▁tw", "o")]
    backend = Backend(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", *SPECIALS]])
    return backend


def metaspace_backend() -> Backend:
    """T5's kind: no bytes, and the decoder drops each ▁ of the first token."""
    pieces = ["▁", "▁Hello", "▁world", "lo", "x", "▁two", "▁▁", "好"]
    vocab = {token: token_id for token_id, token in enumerate(["<unk>", *SPECIALS, *pieces])}
    backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", *SPECIALS]])
    return backend


def word_piece_backend() -> Backend:
    """BERT's kind: a space before each token but the first and those that start with ##."""
    pieces = ["Hello", "world", "##s", "##ly", ".", "'", "two", "好"]
    vocab = {token: token_id for token_id, token in enumerate(["<unk>", *SPECIALS, *pieces])}
    backend = Backend(models.WordPiece(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", *SPECIALS]])
    return backend


BACKENDS = {
    "byte_level": byte_level_backend,
    "byte_fallback": byte_fallback_backend,
    "metaspace": metaspace_backend,
    "word_piece": word_piece_backend,
}


def add_bos_by_itself(backend: Backend) -> Backend:
    """What `add_bos_token: true` means: encode puts <s> first."""
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def save_model_dir(
    model_dir: Path,
    backend: Backend,
    *,
    chat_template: str | None = None,
    config: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
    eos_token: str | None = "</s>",
) -> Path:
    """A directory with tokenizer and configuration, no weights. `config` adds to a vocab_size of
    1,000.
    """
    model_dir.mkdir(exist_ok=True)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token=eos_token)
    fast.chat_template = chat_template
    fast.save_pretrained(model_dir)
    (model_dir / "config.json").write_text(json.dumps({"vocab_size": 1000} | (config or {})))
    if generation_config is not None:
        (model_dir / "generation_config.json").write_text(json.dumps(generation_config))
    return model_dir


def load_tiny(model_dir: Path, kind: str) -> Tokenizer:
    """One of BACKENDS, by way of a saved directory, as a service loads it."""
    return Tokenizer.load(save_model_dir(model_dir, BACKENDS[kind]()))
