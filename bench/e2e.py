"""Tokens per second of SmolLM2 through the three services, beside transformers with the same dtype
and threads.

Each round starts the services anew (ready_s), asks one stream, asks transformers, asks eight
streams; the median of five rounds is kept. Nothing is reported unless the answers are those of
transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import grpc
import torch
import transformers
from pagewire.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc, sampling_pb2
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.recording import record
from gateway.model_name import resolve

ADDRESS = "127.0.0.1:50061"
MODEL = "smollm2-135m-instruct"
NUM_TOKENS = 128
PROMPTS = [
    "The capital of France is a city with a long history, and those who visit it at last",
    "Once upon a time, in a village by the sea, there lived a fisherman who had caught no fish",
    "A page table maps positions to locations. When a request grows, the manager gives",
    "The three most important inventions of the nineteenth century were, in order",
    "To bake bread at home you need flour, water, salt and yeast. First, take a bowl and",
    "The planets of the solar system differ in size, in colour and in matter. Jupiter",
    "An operating system shares the processor among many programs. It gives each of them",
    "Rain fell on the roof all night, and in the morning the garden looked as though",
]


class Asked(NamedTuple):
    """One run of one or more streams."""

    token_ids: list[list[int]]
    tok_s: float
    idle_share: float  # executor waiting for a plan, of wall time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    transformers.logging.set_verbosity_error()
    model_dir = resolve(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    expected = [_transformers(model, ids)[0] for ids in prompts]

    columns: dict[str, list[float]] = {}
    for nth in range(rounds):
        measured = _round(model_dir, model, prompts, expected)
        print(
            f"round {nth + 1}: "
            + ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
        )
        for name, value in measured.items():
            columns.setdefault(name, []).append(value)
    figures = {name: round(statistics.median(values), 4) for name, values in columns.items()}
    record(
        "cpu.json",
        "e2e",
        {
            **figures,
            "single_vs_transformers": round(
                figures["single_tok_s"] / figures["transformers_tok_s"], 3
            ),
            "eight_vs_single": round(figures["eight_tok_s"] / figures["single_tok_s"], 3),
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )


def _round(
    model_dir: Path, model: torch.nn.Module, prompts: list[list[int]], expected: list[list[int]]
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as socket_dir:
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "gateway.cli",
            "serve",
            str(model_dir),
            "--listen",
            ADDRESS,
            "--http",
            "off",
        ]
        server = subprocess.Popen(
            [*command, "--socket-dir", socket_dir, "--log-level", "warning"], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith(b"ready"):
                sys.exit("the services did not get ready")
            ready_s = time.perf_counter() - began
            cache = f"unix:{socket_dir}/cache.sock"
            asyncio.run(_ask(cache, prompts[:1], 8))  # first touch of weights and threads
            single = asyncio.run(_ask(cache, prompts[:1], NUM_TOKENS))
            reference_ids, transformers_tok_s = _transformers(model, prompts[0])
            eight = asyncio.run(_ask(cache, prompts, NUM_TOKENS))
        finally:
            server.terminate()
            server.wait()
    if single.token_ids != [reference_ids] or eight.token_ids != expected:
        sys.exit("the answers differ from those of transformers: no figures")
    return {
        "single_tok_s": single.tok_s,
        "transformers_tok_s": transformers_tok_s,
        "eight_tok_s": eight.tok_s,
        "idle_share": max(single.idle_share, eight.idle_share),
        "ready_s": ready_s,
    }


def _transformers(model: torch.nn.Module, prompt_ids: list[int]) -> tuple[list[int], float]:
    began = time.perf_counter()
    answer = model.generate(  # type: ignore[operator]
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - began
    return answer[0, len(prompt_ids) :].tolist(), NUM_TOKENS / seconds


async def _ask(cache_address: str, prompts: list[list[int]], num_tokens: int) -> Asked:
    async with (
        grpc.aio.insecure_channel(ADDRESS) as channel,
        grpc.aio.insecure_channel(cache_address) as cache,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stats = cache_pb2_grpc.CacheServiceStub(cache)

        async def one(prompt_ids: list[int]) -> list[int]:
            request = inference_pb2.GenerateRequest(
                token_ids=inference_pb2.TokenIds(ids=prompt_ids),
                sampling=sampling_pb2.SamplingParams(temperature=0),
                stop=inference_pb2.StopParams(max_tokens=num_tokens, ignore_eos=True),
            )
            return [
                token_id
                async for reply in stub.Generate(request)
                for token_id in reply.delta.token_ids
            ]

        before = await stats.GetStats(cache_pb2.GetStatsRequest())
        began = time.perf_counter()
        token_ids = await asyncio.gather(*(one(prompt_ids) for prompt_ids in prompts))
        seconds = time.perf_counter() - began
        after = await stats.GetStats(cache_pb2.GetStatsRequest())
    waited_s = (after.executor_waited_us_total - before.executor_waited_us_total) / 1e6
    return Asked(list(token_ids), num_tokens * len(prompts) / seconds, waited_s / seconds)


if __name__ == "__main__":
    main()
