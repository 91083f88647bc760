"""A TCP proxy that a test can cut or hang, so that the server behind it need not stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Listens on a free loopback port; ``accepted_count`` counts accepted connections.

    It uses sockets, because ``asyncio.Server`` leaves those connections open that it is accepting
    when it is closed.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener: socket.socket | None = None
        self._clients: dict[asyncio.Task[None], socket.socket] = {}
        self._is_forwarding = asyncio.Event()
        self._is_forwarding.set()
        self.port = 0
        self.accepted_count = 0

    def restore(self) -> None:
        """Accepts connections, always on the same port."""
        self._is_forwarding.set()
        if not self._listener:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def disconnect(self) -> None:
        """Closes every connection and accepts none, as if the server had been killed."""
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._clients:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until every connection is closed, after ``disconnect``."""
        await asyncio.gather(*self._clients, return_exceptions=True)

    def hang(self) -> None:
        """Accepts connections and forwards nothing, as if the server were stopped."""
        self._is_forwarding.clear()

    async def respond_with(self, data: bytes) -> None:
        """Sends bytes to every client, as if they came from the server."""
        for client in list(self._clients.values()):
            with suppress(OSError):  # the client disconnected
                await asyncio.get_running_loop().sock_sendall(client, data)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self.accepted_count += 1
        task = asyncio.ensure_future(self._serve(client))
        self._clients[task] = client
        # Not in the task: one that is cancelled before its first step never enters a ``with``.
        task.add_done_callback(lambda task: self._clients.pop(task).close())

    async def _serve(self, client: socket.socket) -> None:
        with socket.socket() as server, suppress(OSError):
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(server, self._target)
            async with asyncio.TaskGroup() as copies:
                copies.create_task(self._copy(client, server))
                copies.create_task(self._copy(server, client))

    async def _copy(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await loop.sock_recv(source, 65536):
                await self._is_forwarding.wait()
                await loop.sock_sendall(target, data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@asynccontextmanager
async def open_tcp_proxy(host: str, port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(host, port)
    proxy.restore()
    try:
        yield proxy
    finally:
        proxy.disconnect()
        await proxy.wait_closed()
