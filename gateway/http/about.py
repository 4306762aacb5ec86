"""GET routes: which model, whether alive and ready, how it goes."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from gateway.front import Front
from gateway.http.answers import Model, Models
from gateway.http.documented import REFUSED, TEXT_OR_REFUSED
from gateway.http.errors import json_response
from gateway.http.refusal import JsonRoute
from gateway.metrics import Picture, collected
from servicekit.errors import Reason, Unavailable
from servicekit.metrics import tasks


class Alive(BaseModel):
    status: Literal["alive"]


class Ready(BaseModel):
    status: Literal["ready"]


def about_routes(front: Front) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.get("/v1/models", response_model=Models, responses=REFUSED)
    async def list_models() -> Response:
        """Tells of the one model that is served."""
        return json_response(Models(object="list", data=[_model()]))

    @router.get("/v1/models/{model:path}", response_model=Model, responses=REFUSED)
    async def retrieve_model(model: str) -> Response:
        """Tells of it by its name."""
        front.check_model(model)
        return json_response(_model())

    @router.head("/health", include_in_schema=False)
    @router.get("/health", response_model=Alive, responses=REFUSED)
    async def health() -> Response:
        """Answers as long as the process lives."""
        return json_response(Alive(status="alive"))

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", response_model=Ready, responses=REFUSED)
    async def ready() -> Response:
        """Answers 200 while requests are taken, else 503."""
        if front.chain.draining:
            raise Unavailable(Reason.DRAINING, "the server is draining: ask another one")
        if not front.chain.serving:
            raise Unavailable(
                Reason.CHAIN_NOT_ATTACHED, "cachesvc or a runner is not there: try again"
            )
        return json_response(Ready(status="ready"))

    @router.get("/metrics", response_class=PlainTextResponse, responses=TEXT_OR_REFUSED)
    async def metrics() -> Response:
        """Tells the gateway's numbers, for Prometheus."""
        numbers = collected(front.totals, serving=front.chain.serving)
        picture = Picture([*numbers, tasks()])
        return Response(generate_latest(picture), media_type=CONTENT_TYPE_LATEST)

    def _model() -> Model:
        return Model(
            id=front.model.name,
            object="model",
            created=front.created_s,
            owned_by="pagewire",
            max_model_len=front.max_seq_len,
        )

    return router
