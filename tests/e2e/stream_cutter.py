"""A relay between two Unix sockets whose connections can be cut, as a network or a proxy would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Way = Literal["to_back", "to_front"]


class StreamCutter:
    """Relays on an event loop and a thread of its own, so that a test may block."""

    def __init__(self, front: Path, back: Path) -> None:
        self.front_address = f"unix:{front}"
        self._front, self._back = front, back
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._swallowed: set[Way] = set()

    def swallow(self, way: Way) -> None:
        """Lose all that goes that way from now on, until the next cut. Without this a cut seldom
        loses anything: what one side wrote mostly is with the other by then.
        """
        self._loop.call_soon_threadsafe(self._swallowed.add, way)

    def cut(self) -> int:
        """Abort every connection, losing what is on its way. Returns how many there were."""
        return asyncio.run_coroutine_threadsafe(self._abort_all(), self._loop).result()

    async def _abort_all(self) -> int:
        live = [writer for writer in self._writers if not writer.is_closing()]
        for writer in live:
            writer.transport.abort()
        self._writers.clear()
        self._swallowed.clear()
        return len(live) // 2

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back_reader, back_writer = await asyncio.open_unix_connection(self._back)
        except OSError:  # nobody listens there yet: the caller tries again
            writer.close()
            return
        self._writers += [writer, back_writer]
        for source, target, way in (
            (reader, back_writer, "to_back"),
            (back_reader, writer, "to_front"),
        ):
            task = self._loop.create_task(self._pump(source, target, way))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: Way
    ) -> None:
        try:
            while piece := await source.read(65536):
                if way in self._swallowed:
                    continue
                target.write(piece)
                await target.drain()
        except OSError:
            return  # cut, from either side
        finally:
            target.close()

    async def _serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        async with await asyncio.start_unix_server(self._relay, self._front):
            started.set()
            await stop.wait()
        await self._abort_all()
        await asyncio.gather(*self._pumps)

    @contextmanager
    def running(self) -> Iterator[StreamCutter]:
        started, stop = threading.Event(), asyncio.Event()
        thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(started, stop))
        )
        thread.start()
        try:
            assert started.wait(10)
            yield self
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join()
            self._loop.close()
