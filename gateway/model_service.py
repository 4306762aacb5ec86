"""ModelService: what is served, and within which bounds."""

from __future__ import annotations

from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from pagewire.v1 import model_pb2 as pb
from pagewire.v1 import model_pb2_grpc

from gateway.cache_client import CacheClient
from gateway.served_model import ServedModel, check_served


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Tells of one model; its limits are what `client` heard last."""

    def __init__(self, client: CacheClient, model: ServedModel, created_s: float) -> None:
        """`created_s` is when it began to be served, in seconds since 1970."""
        self._client = client
        self._model = model
        self._created = Timestamp(seconds=int(created_s))

    async def ListModels(  # noqa: N802 # the RPC's name
        self, request: pb.ListModelsRequest, context: Any
    ) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[self._encoded()])

    async def GetModel(  # noqa: N802 # the RPC's name
        self, request: pb.GetModelRequest, context: Any
    ) -> pb.GetModelResponse:
        check_served(request.name, self._model.name, field="name")
        return pb.GetModelResponse(model=self._encoded())

    def _encoded(self) -> pb.Model:
        limits = self._client.limits
        return pb.Model(
            name=self._model.name,
            created=self._created,
            model_type=self._model.model_type,
            architecture=self._model.architecture,
            stored_dtype=self._model.stored_dtype,
            vocab_size=self._model.vocab_size,
            end_token_ids=self._model.end_token_ids,
            has_chat_template=self._model.has_chat_template,
            limits=(
                None
                if limits is None
                else pb.ModelLimits(max_seq_len=limits.max_seq_len, pool_tokens=limits.pool_tokens)
            ),
        )
