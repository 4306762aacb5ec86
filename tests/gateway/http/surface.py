"""What tests of the OpenAI surface ask, and how they play its manager."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI
from pagewire.v1 import cache_pb2

from gateway.front import Front
from gateway.tokenizer import Tokenizer
from tests.gateway.fake_cache import FakeCache, finished, opened, tokens
from tests.gateway.front import accepted

CREATED_S = 1_700_000_000
MAX_MESSAGE_BYTES = 16_384
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS: {"model": "tiny", "prompt": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}
MAX_TOKENS = cache_pb2.FINISH_CAUSE_MAX_TOKENS
STOP_TOKEN = cache_pb2.FINISH_CAUSE_STOP_TOKEN


@dataclass
class Surface:
    """The application, a client of it, and the manager behind."""

    cache: FakeCache
    tokenizer: Tokenizer
    front: Front
    app: FastAPI
    http: httpx2.AsyncClient
    changed: asyncio.Event  # set when the session may serve or not

    async def post(self, path: str, **fields: object) -> httpx2.Response:
        """The body of BODIES with `fields`, answered without the manager."""
        return await self.http.post(path, json=BODIES[path] | fields)

    def ask(self, path: str, **fields: object) -> asyncio.Task[httpx2.Response]:
        """The same, for an answer that waits for the manager."""
        return asyncio.create_task(self.post(path, **fields))

    async def submitted(self) -> cache_pb2.Submit:
        return await self.cache.next("submit")

    def say(
        self,
        submit: cache_pb2.Submit,
        token_ids: Sequence[int],
        cause: cache_pb2.FinishCause.ValueType = MAX_TOKENS,
        cached_tokens: int = 0,
    ) -> None:
        """Take the request and answer it to its end, a token at a time."""
        admitted = cache_pb2.Admitted(key=submit.key, cached_tokens=cached_tokens)
        self.put(accepted(submit.key), cache_pb2.SessionResponse(admitted=[admitted]))
        self.put(*(tokens(submit.key, token_id) for token_id in token_ids))
        self.put(finished(submit.key, cause))

    def say_thumb_with_logprobs(self, submit: cache_pb2.Submit) -> list[int]:
        """Take the request and answer an o, a thumb in its four parts, an end token; the ids, none
        of which was the likeliest but the last.
        """
        (end_id,) = self.tokenizer.end_token_ids
        ids = [*self.tokenizer.encode("o👍")[-5:], end_id]
        admitted = cache_pb2.Admitted(key=submit.key)
        self.put(accepted(submit.key), cache_pb2.SessionResponse(admitted=[admitted]))
        for token_id in ids:
            one = cache_pb2.TokenLogprobs(
                key=submit.key, chosen=-2.5, top_ids=[end_id, 5], top=[-0.5, float("-inf")]
            )
            output = cache_pb2.StepOutput(keys=[submit.key], token_ids=[token_id], logprobs=[one])
            self.put(cache_pb2.SessionResponse(step_output=output))
        self.put(finished(submit.key, STOP_TOKEN))
        return ids

    async def becomes(self, *, serving: bool) -> None:
        """The manager tells, and the gateway heard it."""
        self.changed.clear()
        self.put(opened(serving=serving))
        await self.changed.wait()

    def put(self, *responses: cache_pb2.SessionResponse) -> None:
        for response in responses:
            self.cache.responses.put_nowait(response)

    async def answered(
        self, path: str, token_ids: Sequence[int], **fields: object
    ) -> httpx2.Response:
        """The answer to BODIES with `fields` of a manager that says `token_ids`."""
        call = self.ask(path, **fields)
        self.say(await self.submitted(), token_ids)
        return await call


def chunks_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """Those before [DONE], which is there."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error_of(response: httpx2.Response) -> Mapping[str, Any]:
    """The error object of a refusal, which has all its members and nothing beside it."""
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error
