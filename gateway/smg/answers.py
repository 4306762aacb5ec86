"""An answer in the router's shape: chunks of what is new, and at its end the whole."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from gateway.generation import Event, Finished, FinishReason, Started
from gateway.text_stream import Delta
from gateway.token_logprob import TokenLogprob

REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Answer:
    """Gathers one answer. Chunks carry their log probabilities when it is streamed, else its end
    carries all of them.
    """

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._whole = pb.GenerateComplete()

    def take(self, event: Event) -> pb.GenerateResponse | None:
        """What to send for an event, if anything. The text of deltas is left to the router."""
        if isinstance(event, Started):
            self._whole.prompt_tokens = event.prompt_tokens
            return None
        if isinstance(event, Delta):
            return self._taken(event) if event.token_ids else None
        return self._finished(event)

    def aborted(self) -> pb.GenerateResponse:
        """The end of an answer that nobody wants any more."""
        return self._ended("abort", len(self._whole.output_ids))

    def _taken(self, delta: Delta) -> pb.GenerateResponse | None:
        whole = self._whole
        whole.output_ids.extend(delta.token_ids)
        logprobs = _logprobs(delta.token_ids, delta.logprobs)
        if not self._streamed:
            if logprobs is not None:
                whole.output_logprobs.MergeFrom(logprobs)
            return None
        return pb.GenerateResponse(
            chunk=pb.GenerateStreamChunk(
                token_ids=delta.token_ids,
                prompt_tokens=whole.prompt_tokens,
                completion_tokens=len(delta.token_ids),  # the router adds them up
                output_logprobs=logprobs,
            )
        )

    def _finished(self, event: Finished) -> pb.GenerateResponse:
        """An end token of the model matches no stop, as the protocol has it."""
        whole = self._whole
        whole.cached_tokens = event.cached_tokens
        if event.stop_string is not None:
            whole.matched_stop_str = event.stop_string
        if event.stop_token_id is not None:
            whole.matched_token_id = event.stop_token_id
        return self._ended(REASONS[event.reason], event.completion_tokens)

    def _ended(self, reason: str, completion_tokens: int) -> pb.GenerateResponse:
        self._whole.finish_reason = reason
        self._whole.completion_tokens = completion_tokens
        return pb.GenerateResponse(complete=self._whole)


def _logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> pb.OutputLogProbs | None:
    """Of each id; None where none were asked for."""
    if not logprobs:
        return None
    return pb.OutputLogProbs(
        token_ids=token_ids,
        token_logprobs=[one.logprob for one in logprobs],
        top_logprobs=[
            pb.TopLogProbs(
                token_ids=[token_id for token_id, _ in one.top],
                values=[logprob for _, logprob in one.top],
            )
            for one in logprobs
        ],
    )
