"""A simulator that listens."""

import asyncio
from typing import Any

from aiohttp import web

from gateway.simulator.face import Face
from gateway.simulator.faults import Fault
from gateway.simulator.service import Service

SHUTDOWN_SECONDS = 0.5  # a delayed answer need not hold up the end


class Simulator:
    """Made by `start`; `url` is without /v1."""

    def __init__(self, service: Service, runner: web.BaseRunner, host: str) -> None:
        self.service = service
        self._runner = runner
        self.host = host
        self.port: int = runner.addresses[0][1]

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def next(self, fault: Fault) -> None:
        """Faults wait in line; the first that a request meets is the one that happens."""
        self.service.faults.append(fault)

    async def stop(self) -> None:
        await self._runner.cleanup()


async def start(
    *, service: Service | None = None, host: str = "127.0.0.1", port: int = 0
) -> Simulator:
    """Port 0 takes a free one. Raises OSError where it cannot listen."""
    service = service or Service()
    # The low-level server: nothing between the socket and the face that would rewrite a path or
    # answer an unknown one in its own words.
    server = web.Server(Face(service).handle, request_factory=_request, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return Simulator(service, runner, host)


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> web.BaseRequest:
    """Section 8: a batch has no upper limit, so a body has none either."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)
