"""Keys, live requests and time, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from gateway.api_keys import ApiKeys
from gateway.http.key_check import OPEN
from gateway.intake import Intake
from gateway.tokenizer import Tokenizer
from tests.gateway.fake_cache import FakeCache, tokens
from tests.gateway.front import accepted
from tests.gateway.http.conftest import surface_over
from tests.gateway.http.surface import (
    BODIES,
    CHAT,
    COMPLETIONS,
    MAX_MESSAGE_BYTES,
    Surface,
    error_of,
)

ALICE, BOB = ({"authorization": f"Bearer {name}-0123456789abc"} for name in ("alice", "bob"))
KEYS = ApiKeys({"alice": "alice-0123456789abc", "bob": "bob-0123456789abc"})
WRONG = {"authorization": "Bearer nobody-0123456789"}


def routes_of(router: FastAPI | APIRouter) -> Iterator[Route]:
    """Those of the routers that it includes, too."""
    for route in router.routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from routes_of(included)
        else:
            assert isinstance(route, Route)
            yield route


@pytest.mark.parametrize(("headers", "code"), [({}, "missing_api_key"), (WRONG, "invalid_api_key")])
async def test_every_route_but_the_open_ones_wants_a_key(
    tokenizer: Tokenizer, tmp_path: Path, headers: dict[str, str], code: str
) -> None:
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c", keys=KEYS) as surface:
        routes = list(routes_of(surface.app))
        assert {route.path for route in routes} > {*OPEN, *BODIES, "/metrics", "/v1/models"}
        for route in routes:
            for method in route.methods or ():
                answer = await surface.http.request(method, route.path, headers=headers)
                if route.path in OPEN:
                    assert answer.status_code == 200
                    continue
                assert answer.status_code == 401, (method, route.path)
                assert answer.headers["www-authenticate"] == "Bearer"
                error = error_of(answer)
                assert (error["type"], error["code"]) == ("authentication_error", code)
                assert "nobody" not in answer.text
        assert (await surface.http.get("/no/such/path", headers=headers)).status_code == 401
        assert surface.front.totals.requests[CHAT, "UNAUTHENTICATED"] == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_whoever_has_a_key_is_answered(
    tokenizer: Tokenizer, tmp_path: Path, path: str
) -> None:
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c", keys=KEYS) as surface:
        surface.http.headers |= BOB
        assert (await surface.answered(path, [40])).status_code == 200
        assert (await surface.http.get("/metrics")).status_code == 200


async def test_a_body_is_not_read_before_the_key_is_known(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c", keys=KEYS) as surface:
        answer = await surface.http.post(CHAT, content=b"x" * (MAX_MESSAGE_BYTES + 1))
        assert answer.status_code == 401


async def test_live_requests_are_bounded_by_key_and_counted_down_however_they_end(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    intake = Intake(max_live_requests=2)
    async with surface_over(
        FakeCache(), tokenizer, tmp_path / "c", keys=KEYS, intake=intake
    ) as surface:

        def ask(stream: bool) -> asyncio.Task:
            body = BODIES[CHAT] | {"stream": stream}
            return asyncio.create_task(surface.http.post(CHAT, json=body, headers=ALICE))

        whole, streamed = ask(False), ask(True)
        first, second = await surface.submitted(), await surface.submitted()
        for stream in (False, True):
            refused = await ask(stream)
            assert refused.status_code == 429
            error = error_of(refused)
            assert (error["type"], error["code"]) == ("rate_limit_error", "too_many_live_requests")
            assert "2 live requests, and max_live_requests is 2" in error["message"]
        other = asyncio.create_task(surface.http.post(CHAT, json=BODIES[CHAT], headers=BOB))
        surface.say(await surface.submitted(), [40])
        assert (await other).status_code == 200
        whole.cancel()
        assert (await surface.cache.next("cancel")).key == first.key
        surface.put(tokens(second.key, 40))
        surface.say(second, [40])
        assert (await streamed).status_code == 200
        assert intake.live_requests == 0
        assert (await surface.http.post(CHAT, json={"model": "x"}, headers=ALICE)).is_error
        again = [ask(False), ask(True)]
        for _ in again:
            surface.say(await surface.submitted(), [40])
        assert [(await call).status_code for call in again] == [200, 200]


async def test_choices_count_one_by_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    intake = Intake(max_live_requests=2)
    async with surface_over(FakeCache(), tokenizer, tmp_path / "c", intake=intake) as surface:
        answer = await surface.post(COMPLETIONS, prompt=["a", "b", "c"])
        assert answer.status_code == 429
        assert intake.live_requests == 0


class TestAnAnswerThatTakesTooLong:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_is_504_before_its_first_byte(
        self, tokenizer: Tokenizer, tmp_path: Path, stream: bool
    ) -> None:
        intake = Intake(max_request_s=0.05)
        async with surface_over(FakeCache(), tokenizer, tmp_path / "c", intake=intake) as surface:
            call = surface.ask(CHAT, stream=stream)
            submit = await surface.submitted()
            answer = await call
            assert (await surface.cache.next("cancel")).key == submit.key
        assert answer.status_code == 504
        assert error_of(answer)["code"] == "deadline_exceeded"

    async def test_is_an_error_event_after_what_came_before(
        self, tokenizer: Tokenizer, tmp_path: Path
    ) -> None:
        intake = Intake(max_request_s=1)
        async with surface_over(FakeCache(), tokenizer, tmp_path / "c", intake=intake) as surface:
            call = surface.ask(CHAT, stream=True)
            submit = await surface.submitted()
            surface.put(accepted(submit.key), tokens(submit.key, *tokenizer.encode("so")))
            answer = await call
            assert (await surface.cache.next("cancel")).key == submit.key
        assert answer.status_code == 200
        before, _, last = answer.text.rpartition("event: error\ndata: ")
        assert before.startswith("data: ")
        assert json.loads(last)["error"]["code"] == "deadline_exceeded"


async def test_whoever_drains_is_not_ready_and_refuses(surface: Surface) -> None:
    running = surface.ask(CHAT)
    submit = await surface.submitted()
    surface.front.chain.drain()
    unready = await surface.http.get("/ready")
    assert (unready.status_code, error_of(unready)["code"]) == (503, "draining")
    refused = await surface.post(CHAT)
    assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
    surface.say(submit, [40])
    assert (await running).status_code == 200
