"""A TCP proxy that a test can cut or hang, so that the server behind it need not stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Listens on a free loopback port; ``taken`` counts accepted connections."""

    def __init__(self, host: str, port: int) -> None:
        self._behind = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.taken = 0

    async def restore(self) -> None:
        """Accepts connections, always on the same port."""
        self._flows.set()
        if not self._server:
            self._server = await asyncio.start_server(
                self._serve_connection, "127.0.0.1", self.port
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Closes every connection and accepts none, as if the server had been killed."""
        if self._server:
            self._server.close()
            self._server = None
        for one in self._open:
            one.transport.abort()
        self._open.clear()
        await asyncio.sleep(0)

    def hang(self) -> None:
        """Accepts connections and forwards nothing, as if the server were stopped."""
        self._flows.clear()

    async def respond_with(self, words: bytes) -> None:
        """Sends bytes to every client, as if they came from the server."""
        for one in self._clients & self._open:
            with suppress(OSError):  # the client disconnected
                one.write(words)
                await one.drain()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.taken += 1
        self._open.add(writer)
        self._clients.add(writer)
        with suppress(OSError):
            there, back = await asyncio.open_connection(*self._behind)
            self._open.add(back)
            for one in (self._copy(reader, back), self._copy(there, writer)):
                task = asyncio.ensure_future(one)
                self._passing.add(task)
                task.add_done_callback(self._passing.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._flows.wait()
                target.write(data)
                await target.drain()
        target.close()

    async def end(self) -> None:
        await self.cut()
        self._flows.set()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)


@asynccontextmanager
async def open_tcp_proxy(host: str, port: int) -> AsyncIterator[TcpProxy]:
    made = TcpProxy(host, port)
    await made.restore()
    try:
        yield made
    finally:
        await made.end()
