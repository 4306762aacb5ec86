"""InferenceService: decodes, calls, encodes."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

from pagewire.v1 import inference_pb2 as pb
from pagewire.v1 import inference_pb2_grpc

from gateway import off_loop
from gateway.answering import Answering
from gateway.bounds import MAX_CANCELLED_IDS, check_count
from gateway.generation import Event, GenerationRequest, Started
from gateway.inference_codec import (
    decode_ids,
    decode_tools,
    decode_turns,
    encode_event,
    encode_finished,
    encode_logprob,
)
from gateway.live_requests import LiveRequests
from gateway.prompt import prompt_ids_of
from gateway.served_model import check_served
from gateway.text_stream import Delta
from gateway.tokenizer import Tokenizer
from gateway.totals import Totals
from gateway.traceparent import traceparent_of
from servicekit.sampling_codec import decode_sampling

AnyRequest: TypeAlias = pb.GenerateRequest | pb.ChatRequest | pb.CompleteRequest


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """The public surface over one model."""

    def __init__(
        self,
        answering: Answering,
        tokenizer: Tokenizer,
        model_name: str,
        live: LiveRequests,
        totals: Totals,
    ) -> None:
        self._answering = answering
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._live = live
        self._totals = totals

    async def Generate(  # noqa: N802 # the RPC's name
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        async with aclosing(self._events("Generate", request, context)) as events:
            async for event in events:
                yield pb.GenerateResponse(**encode_event(event))

    async def Chat(  # noqa: N802 # the RPC's name
        self, request: pb.ChatRequest, context: Any
    ) -> AsyncIterator[pb.ChatResponse]:
        async with aclosing(self._events("Chat", request, context)) as events:
            async for event in events:
                yield pb.ChatResponse(**encode_event(event))

    async def Complete(  # noqa: N802 # the RPC's name
        self, request: pb.CompleteRequest, context: Any
    ) -> pb.CompleteResponse:
        num_choices = _num_choices(request)
        answer, texts = pb.CompleteResponse(), defaultdict[int, list[str]](list)
        async with aclosing(self._events("Complete", request, context)) as events:
            async for event in events:
                if isinstance(event, Started):
                    answer.request_id = event.request_id
                    for _ in range(1, num_choices):
                        answer.further_choices.add()
                    continue
                choice = answer.further_choices[event.choice - 1] if event.choice else answer
                if isinstance(event, Delta):
                    texts[event.choice].append(event.text)
                    choice.token_ids.extend(event.token_ids)
                    choice.logprobs.extend(map(encode_logprob, event.logprobs))
                else:
                    choice.finished.CopyFrom(encode_finished(event))
                    choice.text = "".join(texts[event.choice])
        return answer

    async def Tokenize(  # noqa: N802 # the RPC's name
        self, request: pb.TokenizeRequest, context: Any
    ) -> pb.TokenizeResponse:
        with self._totals.request("Tokenize"):
            check_served(request.model, self._model_name)
            is_chat = request.WhichOneof("prompt") == "chat"
            special = request.HasField("add_special_tokens")
            ids = await prompt_ids_of(
                self._tokenizer,
                decode_turns(request.chat.messages) if is_chat else request.text,
                tools=decode_tools(request.chat.tools),
                add_special_tokens=request.add_special_tokens if special else None,
            )
            pieces = await off_loop.pieces_of(self._tokenizer, ids) if request.with_pieces else []
            return pb.TokenizeResponse(token_ids=ids, pieces=pieces)

    async def Detokenize(  # noqa: N802 # the RPC's name
        self, request: pb.DetokenizeRequest, context: Any
    ) -> pb.DetokenizeResponse:
        with self._totals.request("Detokenize"):
            check_served(request.model, self._model_name)
            text = await off_loop.detokenize(
                self._tokenizer,
                "token_ids",
                decode_ids(request.token_ids),
                skip_special_tokens=request.skip_special_tokens,
            )
            return pb.DetokenizeResponse(text=text)

    async def Cancel(  # noqa: N802 # the RPC's name
        self, request: pb.CancelRequest, context: Any
    ) -> pb.CancelResponse:
        with self._totals.request("Cancel"):
            check_count("request_ids", len(request.request_ids), MAX_CANCELLED_IDS)
            ids = self._live.cancel(request.request_ids)
            return pb.CancelResponse(cancelled_ids=ids.cancelled, unknown_ids=ids.unknown)

    async def _events(
        self, rpc: str, request: AnyRequest, context: Any
    ) -> AsyncGenerator[Event, None]:
        """Those of the answer. The call counts under `rpc` and the code that it ends with."""
        with self._totals.request(rpc):
            check_served(request.model, self._model_name)
            make = partial(self._generation_request, request, context)
            async with aclosing(self._answering.events_of(request.request_id, make)) as events:
                async for event in events:
                    yield event

    async def _generation_request(
        self, request: AnyRequest, context: Any, request_id: str
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
            include_stop=stop.include_stop,
            remaining_s=context.time_remaining(),  # after the prompt was tokenized
            traceparent=traceparent_of(context.invocation_metadata() or ()),
            priority=request.priority,
            cache_salt=request.cache_salt,
            num_choices=_num_choices(request),
            resume_token_ids=(
                []
                if isinstance(request, pb.CompleteRequest)
                else decode_ids(request.resume_token_ids)
            ),
        )

    async def _prompt_ids(self, request: AnyRequest) -> list[int]:
        if isinstance(request, pb.ChatRequest):
            return await prompt_ids_of(
                self._tokenizer,
                decode_turns(request.messages),
                tools=decode_tools(request.tools),
            )
        if request.WhichOneof("prompt") == "token_ids":
            return decode_ids(request.token_ids.ids)
        return await prompt_ids_of(self._tokenizer, request.text)


def _num_choices(request: AnyRequest) -> int:
    return request.n if request.HasField("n") else 1
