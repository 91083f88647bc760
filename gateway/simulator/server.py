"""The simulator as an HTTP server on one or two ports."""

import asyncio
from typing import Any

from aiohttp import web

from gateway.simulator.exchange import Fault
from gateway.simulator.http_handler import RequestHandler
from gateway.simulator.legacy.interface import LegacyInterface
from gateway.simulator.service import Service

SHUTDOWN_SECONDS = 0.5  # Short: a response that a fault delays must not delay the shutdown.


class Listener:
    """A listening socket for one interface of a service; `url` is without /v1."""

    def __init__(self, handler: RequestHandler, host: str) -> None:
        # The low-level server, because aiohttp's router would normalize paths and answer unknown
        # ones itself.
        server = web.Server(handler.handle, request_factory=_create_request, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        self.host = host

    async def listen(self, port: int) -> None:
        """Starts listening. Raises OSError after closing what was opened."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, port).start()
        except OSError:
            # The runner is set up already and would keep its resources.
            await self.stop()
            raise

    @property
    def port(self) -> int:
        port: int = self._runner.addresses[0][1]
        return port

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def stop(self) -> None:
        await self._runner.cleanup()


class Simulator:
    """A running simulator; `legacy` is None unless `start_simulator` got a legacy port."""

    def __init__(
        self, service: Service, current_listener: Listener, legacy: Listener | None
    ) -> None:
        self.service = service
        self.legacy = legacy
        self._current = current_listener
        self.host = current_listener.host
        self.port = current_listener.port
        self.url = current_listener.url

    def inject_fault(self, fault: Fault) -> None:
        """Queues a fault; each request takes the first one that matches it."""
        self.service.faults.append(fault)

    async def stop(self) -> None:
        if self.legacy is not None:
            await self.legacy.stop()
        await self._current.stop()


async def start_simulator(
    *,
    service: Service | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    legacy_port: int | None = None,
) -> Simulator:
    """Starts a simulator; port 0 selects a free port. Raises ListenError."""
    service = service or Service()
    current_listener = await _open_listener(Listener(RequestHandler(service), host), port)
    if legacy_port is None:
        return Simulator(service, current_listener, None)
    try:
        legacy_listener = await _open_listener(
            Listener(RequestHandler(service, LegacyInterface(service)), host), legacy_port
        )
    except ListenError:
        # The caller gets no simulator to stop, so the first listener must not stay open.
        await current_listener.stop()
        raise
    return Simulator(service, current_listener, legacy_listener)


class ListenError(OSError):
    """A port could not be opened; `port` is the requested one."""

    def __init__(self, port: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.port = port


async def _open_listener(listener: Listener, port: int) -> Listener:
    try:
        await listener.listen(port)
    except OSError as error:
        raise ListenError(port, error) from error
    return listener


def _create_request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> web.BaseRequest:
    """Creates aiohttp's request without a size limit: a batch has none (section 8)."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)
