"""The real server on a real socket: clients that leave, long bodies, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from tokenizers import Tokenizer as Backend

from gateway.api_keys import ApiKeys
from gateway.http.server import HttpServer
from gateway.tcp_listener import listener
from gateway.tokenizer import Tokenizer
from servicekit.tls import Tls
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
from tests.servicekit.certificates import write_certificates

SMALL_BYTES = 4096


@pytest.fixture
async def served(surface: Surface) -> AsyncIterator[tuple[Surface, str]]:
    """A surface, and the HOST:PORT at which it is served."""
    async with serving(surface) as (_, address):
        yield surface, address


@asynccontextmanager
async def serving(
    surface: Surface, tls: Tls | None = None
) -> AsyncIterator[tuple[HttpServer, str]]:
    bound = listener("127.0.0.1:0", "--http")
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
    host, port = bound.getsockname()
    server = HttpServer(bound, surface.app, surface.front.cut, tls)
    server.start()
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop(within_grace, 0)


async def within_grace(ending: asyncio.Future[None], grace_s: float) -> bool:
    await asyncio.wait((ending,), timeout=grace_s)
    return ending.done()


async def connected(
    address: str, path: str, **fields: object
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has sent its request, and holds little that it did not read."""
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    reader, writer = await asyncio.open_connection(sock=connection, limit=SMALL_BYTES)
    body = json.dumps(BODIES[path] | fields).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return reader, writer


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("taken", [False, True])
async def test_case_8_1_whoever_leaves_ends_its_request(
    served: tuple[Surface, str], path: str, stream: bool, taken: bool
) -> None:
    """Case 8.1: streams and whole answers, before and after the manager took them."""
    surface, address = served
    reader, writer = await connected(address, path, stream=stream)
    submit = await surface.submitted()
    if taken:
        surface.put(accepted(submit.key), tokens(submit.key, *surface.tokenizer.encode("so")))
    if taken and stream:
        assert await reader.readuntil(b"data: ")
    writer.close()
    assert (await surface.cache.next("cancel")).key == submit.key
    await writer.wait_closed()
    await until(lambda: surface.front.totals.live_answers == 0)
    await until(lambda: surface.front.totals.requests == {(path, "CANCELLED"): 1})


async def until(holds) -> None:
    async with asyncio.timeout(10):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


async def test_whoever_leaves_ends_all_choices(served: tuple[Surface, str]) -> None:
    surface, address = served
    _, writer = await connected(address, COMPLETIONS, prompt=["a", "b", "c"])
    keys = {(await surface.submitted()).key for _ in range(3)}
    writer.close()
    assert {(await surface.cache.next("cancel")).key for _ in range(3)} == keys


async def test_a_stream_that_nobody_reads_is_cancelled(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    num_tokens = 5000
    async with (
        surface_over(FakeCache(), tokenizer, tmp_path / "c", max_stall_s=0.05) as surface,
        serving(surface) as (_, address),
    ):
        reader, writer = await connected(address, COMPLETIONS, stream=True)
        submit = await surface.submitted()
        surface.put(accepted(submit.key), *[tokens(submit.key, 40)] * num_tokens)
        assert (await surface.cache.next("cancel")).key == submit.key
        totals = surface.front.totals
        await until(lambda: totals.requests == {(COMPLETIONS, "CANCELLED"): 1})
        assert totals.live_answers == 0
        assert totals.completion_tokens < num_tokens
        rest = await reader.read()  # what was written before, then the connection ends
        assert b"[DONE]" not in rest
        writer.close()


class Gated:
    """A tokenizer's backend that encodes nothing before it may."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.entered, self.may = threading.Event(), threading.Event()
        self.decoder = backend.decoder

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        self.entered.set()
        assert self.may.wait(10)
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_nobody_waits_for_the_tokens_of_a_client_that_left(
    path: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The answer's time counts from before them."""
    gated = Gated(tokenizer.backend)
    slow = replace(tokenizer, backend=cast("Backend", gated))
    tools = [{"type": "function", "function": {"name": "f"}}]  # a thread renders and encodes it
    fields = {"messages": BODIES[CHAT]["messages"], "tools": tools, "prompt": None}
    asked = fields if path == "/tokenize" else {"tools": tools}
    async with surface_over(FakeCache(), slow, tmp_path / "c") as surface:
        totals = surface.front.totals
        async with serving(surface) as (_, address):
            _, writer = await connected(address, path, **asked)
            await until(gated.entered.is_set)
            assert totals.live_answers == (path == CHAT)
            writer.close()
            await until(lambda: totals.requests == {(path, "CANCELLED"): 1})
            assert totals.live_answers == 0
            gated.may.set()
        assert surface.cache.commands.empty()


async def test_a_connection_serves_one_request_after_another(
    served: tuple[Surface, str],
) -> None:
    surface, address = served
    async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
        for stream in (False, True, False):
            call = asyncio.create_task(client.post(CHAT, json=BODIES[CHAT] | {"stream": stream}))
            surface.say(await surface.submitted(), surface.tokenizer.encode("so"))
            assert (await call).status_code == 200


@pytest.mark.parametrize("num_bytes", [MAX_MESSAGE_BYTES + 1, 10 * MAX_MESSAGE_BYTES])
async def test_case_8_7_who_sends_too_much_hears_so(
    served: tuple[Surface, str], num_bytes: int
) -> None:
    """Case 8.7: with a length told before, and in chunks without one."""
    _, address = served

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, num_bytes, 1000):
            yield b"x" * 1000

    async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
        for content in (b"x" * num_bytes, chunks()):
            response = await client.post(CHAT, content=content)
            assert response.status_code == 413
            assert error_of(response)["code"] == "message_too_large"


@pytest.mark.parametrize("num_bytes", [100, 10 * MAX_MESSAGE_BYTES])
async def test_who_sends_much_without_a_key_hears_so(
    tokenizer: Tokenizer, tmp_path: Path, num_bytes: int
) -> None:
    keys = ApiKeys({"alice": "alice-0123456789"})
    async with (
        surface_over(FakeCache(), tokenizer, tmp_path / "c", keys=keys) as surface,
        serving(surface) as (_, address),
        httpx2.AsyncClient(base_url=f"http://{address}") as client,
    ):
        for _ in range(2):
            response = await client.post(CHAT, content=b"x" * num_bytes)
            assert response.status_code == 401


async def test_with_tls_whoever_trusts_the_certificate_is_answered(
    surface: Surface, tmp_path: Path
) -> None:
    write_certificates(tmp_path)
    tls = Tls.read(str(tmp_path / "server.cert"), str(tmp_path / "server.key"), None)
    async with serving(surface, tls) as (_, address):
        trusting = ssl.create_default_context(cafile=tmp_path / "ca")
        async with httpx2.AsyncClient(verify=trusting) as client:
            assert (await client.get(f"https://{address}/health")).status_code == 200
            with pytest.raises(httpx2.TransportError):
                await client.get(f"http://{address}/health")
        async with httpx2.AsyncClient() as client:
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(f"https://{address}/health")


async def test_who_asks_before_sending_too_much_need_not_send_it(
    served: tuple[Surface, str],
) -> None:
    _, address = served
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with closing(writer):
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\n"
            f"content-length: {MAX_MESSAGE_BYTES + 1}\r\n\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_under_way_ends_within_the_grace_period(
    surface: Surface, stream: bool
) -> None:
    async with serving(surface) as (server, address):
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            call = asyncio.create_task(client.post(CHAT, json=BODIES[CHAT] | {"stream": stream}))
            submit = await surface.submitted()
            stopping = asyncio.create_task(server.stop(within_grace, 30))
            await until(lambda: is_closed(address))
            surface.say(submit, surface.tokenizer.encode("so"))
            response = await call
        await stopping
    assert response.status_code == 200
    assert "[DONE]" in response.text if stream else response.json()["usage"]


def is_closed(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_longer_is_cut_and_says_so(
    surface: Surface, stream: bool
) -> None:
    async with serving(surface) as (server, address):
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            call = asyncio.create_task(client.post(CHAT, json=BODIES[CHAT] | {"stream": stream}))
            submit = await surface.submitted()
            surface.put(accepted(submit.key), tokens(submit.key, *surface.tokenizer.encode("so")))
            await until(lambda: surface.front.totals.completion_tokens > 0)
            await server.stop(within_grace, 0)
            response = await call
        assert (await surface.cache.next("cancel")).key == submit.key
    assert response.status_code == (200 if stream else 503)
    error = json.loads(response.text.split("event: error\ndata: ")[-1])["error"]
    assert (error["type"], error["code"]) == ("server_error", "draining")
    assert "[DONE]" not in response.text


async def test_a_client_that_reads_nothing_does_not_hold_the_process_up(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.server.CUT_S", 0.1)
    num_tokens = 5000
    async with serving(surface) as (server, address):
        _, writer = await connected(address, COMPLETIONS, stream=True, max_tokens=num_tokens)
        submit = await surface.submitted()
        surface.say(submit, [40] * num_tokens)
        await until(surface.cache.responses.empty)
        async with asyncio.timeout(10):
            await server.stop(within_grace, 0)
        assert surface.front.totals.completion_tokens < num_tokens  # it did not take them all
        writer.close()
