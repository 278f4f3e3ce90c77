"""Connections between processes that can be cut, through a relay for each direction.

A cut link behaves like a network that loses every packet. Sent data and new connections are held
back, and neither end gets an error. After healing all of it is delivered, as by TCP's resending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_CHUNK: Final = 1 << 18
_CALL_S: Final = 10.0


class Link:
    """A relay from a port to an address, which may change."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._whole = asyncio.Event()
        self._whole.set()
        self._target: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        """Listen. Call it in the loop of the relay."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    def lead_to(self, address: str) -> None:
        """Relay new connections to this address."""
        host, _, port = address.rpartition(":")
        self._target = (host.strip("[]"), int(port))

    def cut(self) -> None:
        """Cut the link, and hold back all data and connections."""
        self._links.call(self._set(whole=False))

    def heal(self) -> None:
        """Heal the link, and deliver the data and connections that were held back."""
        self._links.call(self._set(whole=True))

    def close(self) -> None:
        """Stop listening. Call it in the loop of the relay."""
        if self._server is not None:
            self._server.close()

    async def _set(self, *, whole: bool) -> None:
        if whole:
            self._whole.set()
        else:
            self._whole.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._whole.wait()
            if self._target is None:
                return
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            ends.append(there_writer)
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        except OSError:
            pass  # the target does not listen, so the client's connection closes
        except asyncio.CancelledError:  # by Links.close, which does not wait for data
            for each in ends:
                each.transport.abort()  # close() would wait until all data is sent
        finally:
            for each in ends:
                with suppress(OSError):
                    each.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._whole.wait()
                target.write(data)
                await target.drain()
        await self._whole.wait()  # a cut link also holds back the end of a connection
        with suppress(OSError):
            target.close()


class Links:
    """The links of a cluster, which run in a thread until :meth:`close`."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="isolog-links", daemon=True)
        self._thread.start()

    def open(self) -> Link:
        """Open a new link without a target."""
        link = Link(self)
        self.call(link.open())
        self._links.append(link)
        return link

    def call(self, act: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the links' thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(_CALL_S)

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for each in self._links:
            each.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports finish in the loop's next iteration
