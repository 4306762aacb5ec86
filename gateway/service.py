"""InferenceService: decodes, calls, encodes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, TypeAlias

import structlog
from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc

from gateway.cache_client import CacheClient
from gateway.generation import Event, Finished, Generation, GenerationRequest, Started
from gateway.text_stream import Delta
from gateway.tokenizer import ChatMessage, Tokenizer
from gateway.traceparent import traceparent_of
from servicekit.errors import AlreadyExists, InvalidArgument, NotFound, Reason
from servicekit.sampling_codec import decode_sampling

log = structlog.get_logger()

MAX_REQUEST_ID_CHARS = 256
LONG_TEXT_CHARS = 8_192  # tokenized on a thread, so that other streams go on
AnyRequest: TypeAlias = pb.GenerateRequest | pb.ChatRequest | pb.CompleteRequest


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """The public surface over one model. Owns the set of live request ids."""

    def __init__(self, client: CacheClient, tokenizer: Tokenizer, model_name: str) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._live_ids: set[str] = set()

    async def Generate(  # noqa: N802 # the RPC's name
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                yield pb.GenerateResponse(**_encoded(event))

    async def Chat(  # noqa: N802 # the RPC's name
        self, request: pb.ChatRequest, context: Any
    ) -> AsyncIterator[pb.ChatResponse]:
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                yield pb.ChatResponse(**_encoded(event))

    async def Complete(  # noqa: N802 # the RPC's name
        self, request: pb.CompleteRequest, context: Any
    ) -> pb.CompleteResponse:
        answer = pb.CompleteResponse()
        texts: list[str] = []
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                if isinstance(event, Started):
                    answer.request_id = event.request_id
                elif isinstance(event, Delta):
                    texts.append(event.text)
                    answer.token_ids.extend(event.token_ids)
                else:
                    answer.finished.CopyFrom(_encoded(event)["finished"])
        answer.text = "".join(texts)
        return answer

    async def _events(self, request: AnyRequest, context: Any) -> AsyncGenerator[Event, None]:
        if request.model not in ("", self._model_name):
            raise NotFound(
                Reason.MODEL_NOT_FOUND,
                f"model {request.model!r} is not served; {self._model_name!r} is",
                field="model",
            )
        request_id = self._claimed(request.request_id)
        finished: Finished | None = None
        try:
            with structlog.contextvars.bound_contextvars(req_id=request_id):
                generation = Generation(
                    self._client,
                    self._tokenizer,
                    await self._generation_request(request, request_id, context),
                )
                async with aclosing(generation.events()) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            finished = event
                        yield event
        finally:
            self._live_ids.discard(request_id)
            log.info(
                "request ended",
                req_id=request_id,
                reason=finished.reason.value if finished else "not finished",
                completion_tokens=finished.completion_tokens if finished else None,
            )

    def _claimed(self, request_id: str) -> str:
        if len(request_id) > MAX_REQUEST_ID_CHARS:
            raise InvalidArgument(
                Reason.INVALID_FIELD,
                f"request_id has {len(request_id)} characters; at most {MAX_REQUEST_ID_CHARS} "
                "are allowed",
                field="request_id",
            )
        if request_id in self._live_ids:
            raise AlreadyExists(
                Reason.DUPLICATE_REQUEST_ID,
                f"request_id {request_id!r} is live: use another, or wait for that answer to end",
                field="request_id",
            )
        claimed = request_id or secrets.token_hex(8)
        self._live_ids.add(claimed)
        return claimed

    async def _generation_request(
        self, request: AnyRequest, request_id: str, context: Any
    ) -> GenerationRequest:
        sampling = decode_sampling(request.sampling, seed=secrets.randbits(63))
        stop = request.stop
        prompt_ids = await self._prompt_ids(request)
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            max_tokens=stop.max_tokens if stop.HasField("max_tokens") else None,
            stop_strings=list(stop.strings),
            stop_token_ids=list(stop.token_ids),
            ignore_eos=stop.ignore_eos,
            min_tokens=stop.min_tokens,
            remaining_s=context.time_remaining(),  # after the prompt was tokenized
            traceparent=traceparent_of(context.invocation_metadata() or ()),
        )

    async def _prompt_ids(self, request: AnyRequest) -> list[int]:
        if isinstance(request, pb.ChatRequest):
            messages = [ChatMessage(message.role, message.content) for message in request.messages]
            if _chars(message.content for message in messages) > LONG_TEXT_CHARS:
                return await asyncio.to_thread(self._tokenizer.encode_chat, messages)
            return self._tokenizer.encode_chat(messages)
        if request.WhichOneof("prompt") == "token_ids":
            return list(request.token_ids.ids)
        if len(request.text) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._tokenizer.encode, request.text)
        return self._tokenizer.encode(request.text) if request.text else []


def _chars(texts: Iterable[str]) -> int:
    return sum(map(len, texts))


def _encoded(event: Event) -> dict[str, Any]:
    """The member of a response's `event` that says it."""
    if isinstance(event, Started):
        return {
            "started": pb.Started(request_id=event.request_id, prompt_tokens=event.prompt_tokens)
        }
    if isinstance(event, Delta):
        return {"delta": pb.Delta(text=event.text, token_ids=event.token_ids)}
    return {
        "finished": pb.Finished(
            reason=pb.FinishReason.Value(f"FINISH_REASON_{event.reason.value}"),
            **_matched(event),
            usage=pb.Usage(
                prompt_tokens=event.prompt_tokens,
                completion_tokens=event.completion_tokens,
                cached_tokens=event.cached_tokens,
            ),
            detail=event.detail,
        )
    }


def _matched(event: Finished) -> dict[str, Any]:
    """The member of Finished's `matched`, if any."""
    names = ("end_token_id", "stop_token_id", "stop_string")
    return {name: value for name in names if (value := getattr(event, name)) is not None}
