"""The simulator as an HTTP server on one or two ports."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.simulator.current_interface import CurrentInterface
from gateway.simulator.http_handler import Interface, RequestHandler
from gateway.simulator.legacy.interface import LegacyInterface
from gateway.simulator.service import Service

SHUTDOWN_SECONDS = 0.5  # Short: a response that a fault delays must not delay the shutdown.


class ListenError(OSError):
    """A port could not be opened; `port` is the requested one."""

    def __init__(self, port: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.port = port


class Listener:
    """A listening socket for one interface of a service; `url` is without /v1."""

    def __init__(self, handler: RequestHandler, host: str) -> None:
        # The low-level server, because aiohttp's router would normalize paths and answer unknown
        # ones itself.
        server = web.Server(handler.handle, request_factory=_create_request, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        self._host = host
        self.url = ""

    async def listen(self, port: int) -> None:
        """Starts listening. Raises ListenError."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, port).start()
        except OSError as error:
            raise ListenError(port, error) from error
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()


class Simulator:
    """A running simulator; `legacy` is None unless `start_simulator` got a legacy port."""

    def __init__(self, service: Service, current: Listener) -> None:
        self.service = service
        self.current = current
        self.legacy: Listener | None = None

    @property
    def url(self) -> str:
        return self.current.url

    async def stop(self) -> None:
        for listener in (self.current, self.legacy):
            if listener is not None:
                await listener.stop()


async def start_simulator(
    *,
    service: Service | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    legacy_port: int | None = None,
    build_handler: Callable[[Service, Interface], RequestHandler] = RequestHandler,
) -> Simulator:
    """Starts a simulator; port 0 selects a free port. Raises ListenError."""
    service = service or Service()
    current_handler = build_handler(service, CurrentInterface(service))
    simulator = Simulator(service, Listener(current_handler, host))
    try:
        await simulator.current.listen(port)
        if legacy_port is not None:
            simulator.legacy = Listener(build_handler(service, LegacyInterface(service)), host)
            await simulator.legacy.listen(legacy_port)
    except ListenError:
        # The caller gets no simulator to stop, so no listener may stay open.
        await simulator.stop()
        raise
    return simulator


def _create_request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> web.BaseRequest:
    """Creates aiohttp's request without a size limit: a batch has none (section 8)."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)
