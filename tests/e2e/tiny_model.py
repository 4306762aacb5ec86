"""A random Llama of a few kilobytes with clear gaps between its logits, and what transformers says
it answers.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCAB_SIZE = 320
MAX_SEQ_LEN = 256
END_IDS = (257, 258)  # generation_config.json's; the tokenizer and config.json know the first
MIN_GAP = 1e-3  # between the two best logits of the reference: below it rounding would decide
CHAT_TEMPLATE = (
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def make_tiny_model(model_dir: Path, seed: int = 0, head_dim: int = 16) -> Path:
    """Save a model and a byte-level tokenizer in `model_dir`. Kernels of a GPU take a `head_dim`
    from 64 on.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=MAX_SEQ_LEN,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = list(END_IDS)
    model.save_pretrained(model_dir)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: idx for idx, char in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(model_dir)
    return model_dir


class UnclearError(AssertionError):
    """The reference's two best logits are too close somewhere for a comparison to mean anything."""


def clear_prompt(model_dir: Path, length: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """The first random prompt of `length` whose greedy answer has clear gaps, and that answer."""
    for seed in range(50):
        rng = random.Random(seed * 1000 + length)
        prompt_ids = [rng.randrange(256) for _ in range(length)]
        try:
            return prompt_ids, reference_ids(model_dir, prompt_ids, num_tokens)
        except UnclearError:
            continue
    raise UnclearError(f"no prompt of {length} tokens is clear over {num_tokens}")


@cache
def reference_model(model_dir: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def reference_ids(
    model_dir: Path, prompt_ids: list[int], num_tokens: int, **settings: object
) -> list[int]:
    """What transformers generates greedily, end tokens ignored. Errors: UnclearError."""
    model = reference_model(model_dir)
    answer = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )
    for position, logits in enumerate(answer.scores):
        best, second = logits[0].topk(2).values.tolist()
        if best - second < MIN_GAP:
            raise UnclearError(f"token {position}: the reference's own gap is {best - second}")
    ids: list[int] = answer.sequences[0, len(prompt_ids) :].tolist()
    return ids
