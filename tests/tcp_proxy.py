"""A TCP proxy that a test can cut or hang, so that the server behind it need not stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Listens on a free loopback port; ``accepted_count`` counts accepted connections."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._copy_tasks: set[asyncio.Task[None]] = set()
        self._is_forwarding = asyncio.Event()
        self._is_forwarding.set()
        self.port = 0
        self.accepted_count = 0

    async def restore(self) -> None:
        """Accepts connections, always on the same port."""
        self._is_forwarding.set()
        if not self._server:
            self._server = await asyncio.start_server(
                self._serve_connection, "127.0.0.1", self.port
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def disconnect(self) -> None:
        """Closes every connection and accepts none, as if the server had been killed."""
        if self._server:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        await asyncio.sleep(0)

    def hang(self) -> None:
        """Accepts connections and forwards nothing, as if the server were stopped."""
        self._is_forwarding.clear()

    async def respond_with(self, data: bytes) -> None:
        """Sends bytes to every client, as if they came from the server."""
        for writer in self._clients & self._open:
            with suppress(OSError):  # the client disconnected
                writer.write(data)
                await writer.drain()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.accepted_count += 1
        self._open.add(writer)
        self._clients.add(writer)
        with suppress(OSError):
            target_reader, target_writer = await asyncio.open_connection(*self._target)
            self._open.add(target_writer)
            for copy in (self._copy(reader, target_writer), self._copy(target_reader, writer)):
                task = asyncio.ensure_future(copy)
                self._copy_tasks.add(task)
                task.add_done_callback(self._copy_tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._is_forwarding.wait()
                target.write(data)
                await target.drain()
        target.close()

    async def shut_down(self) -> None:
        await self.disconnect()
        self._is_forwarding.set()
        for task in self._copy_tasks:
            task.cancel()
        await asyncio.gather(*self._copy_tasks, return_exceptions=True)


@asynccontextmanager
async def open_tcp_proxy(host: str, port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(host, port)
    await proxy.restore()
    try:
        yield proxy
    finally:
        await proxy.shut_down()
