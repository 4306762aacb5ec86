"""Streams the answer to a question over HTTP, with the `openai` package.

    python openai_chat.py QUESTION [TEMPERATURE]

The server is at $PAGEWIRE_HTTP, else http://127.0.0.1:8000.
"""

import os
import sys

from openai import APIError, OpenAI


def ask(url: str, question: str, temperature: float) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("PAGEWIRE_API_KEY", "none"))
    chunks = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        temperature=temperature,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n[{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out]")


if __name__ == "__main__":
    try:
        ask(
            os.environ.get("PAGEWIRE_HTTP", "http://127.0.0.1:8000"),
            sys.argv[1],
            float(sys.argv[2]) if len(sys.argv) > 2 else 0.0,
        )
    except APIError as error:
        sys.exit(f"{type(error).__name__} ({error.code} {error.param}): {error.message}")
