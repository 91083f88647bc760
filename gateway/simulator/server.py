"""The simulator as an HTTP server on one or two ports."""

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from gateway.simulator import batches
from gateway.simulator.current_interface import CurrentInterface
from gateway.simulator.legacy.interface import LegacyInterface
from gateway.simulator.requests import AcceptedRequest, Exchange
from gateway.simulator.state import Service, format_timestamp
from gateway.simulator.validation import ApiError, JsonObject, Problem, encode_json

log = logging.getLogger(__name__)

MASK = "****"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})

Interface = CurrentInterface | LegacyInterface


class RequestHandler:
    """Handles the requests of one interface."""

    def __init__(self, service: Service, interface: Interface) -> None:
        self.service = service
        self.interface = interface

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = await self.read_exchange(request)
        if self.accept_request(exchange):
            self.run_operation(exchange)
        self.log_exchange(exchange)
        return self.build_response(exchange)

    async def read_exchange(self, request: web.BaseRequest) -> Exchange:
        return Exchange(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            body=await request.read(),
            address=request.remote or "",
        )

    def accept_request(self, exchange: Exchange) -> bool:
        """Authenticates a request. Returns False if it is refused, with the response set."""
        try:
            exchange.request = self.interface.accept_request(exchange)
        except ApiError as error:
            self.set_error_response(exchange, error)
        return exchange.request is not None

    def run_operation(self, exchange: Exchange) -> None:
        """Executes an accepted request, and sets its response."""
        assert exchange.request is not None  # noqa: S101  # it is accepted
        try:
            # Processing has no task of its own: each request first brings its tenant up to date.
            batches.finish_due_batches(exchange.request.tenant)
            answer = self.interface.handle_operation(exchange, exchange.request)
            exchange.response_body = encode_json({"ok": True, **answer})
        except ApiError as error:
            self.set_error_response(exchange, error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            failure = ApiError(Problem("internal_server_error", "Internal error"))
            self.set_error_response(exchange, failure)

    def set_error_response(self, exchange: Exchange, error: ApiError) -> None:
        exchange.status = self.interface.select_error_status(error)
        exchange.response_body = encode_json(error.build_body())

    def log_exchange(self, exchange: Exchange) -> None:
        """Enters a request in the logs of its recipients, after its operation: with the response."""
        # A request that names several recipients is in the log of each.
        if request := exchange.request:
            for recipient in request.logged_recipients:
                recipient.activities.append(_build_log_entry(exchange, request))

    def build_response(self, exchange: Exchange) -> web.Response:
        headers = CIMultiDict(
            {
                "Content-Type": "application/json; charset=utf-8",
                # From the service's own clock, which may be apart from the client's.
                "Date": formatdate(self.service.clock(), usegmt=True),
                "Server": "simulator",
                **self.interface.headers,
            }
        )
        headers.update(exchange.response_headers)
        return web.Response(status=exchange.status, body=exchange.response_body, headers=headers)


def _replace_lone_surrogates(value: str) -> str:
    # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot represent.
    return value.encode("utf-8", "replace").decode()


def _build_log_entry(exchange: Exchange, request: AcceptedRequest) -> JsonObject:
    return {
        "ip": exchange.address,
        "url": _replace_lone_surrogates(exchange.target),
        "method": exchange.method,
        "headers": {
            name: MASK if name.lower() in SECRET_HEADERS else _replace_lone_surrogates(value)
            for name, value in exchange.headers.items()
        },
        "request": exchange.body.decode("utf-8", "replace"),
        "response": exchange.response_body.decode("utf-8", "replace"),
        "code": exchange.status,
        "source": "api",
        # Section 2.8 does not define it; only the live environment pays anybody.
        "testMode": request.tenant.environment != "live",
        "createdAt": format_timestamp(request.tenant.now()),
    }


HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 0.5  # Short: a response that a fault delays must not delay the shutdown.


class ListenError(OSError):
    """A port could not be opened; `port` is the requested one."""

    def __init__(self, port: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.port = port


class Simulator:
    """A running simulator. The URLs are without /v1; without a legacy port, the legacy one is empty."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = self.legacy_url = ""
        self._runners: list[web.ServerRunner] = []

    async def listen(self, handler: RequestHandler, port: int) -> str:
        """Starts listening for one interface, and returns its URL. Raises ListenError."""
        # The low-level server, because aiohttp's router would normalize paths and answer unknown
        # ones itself.
        server = web.Server(handler.handle, request_factory=_create_request, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        self._runners.append(runner)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise ListenError(port, error) from error
        return f"http://{HOST}:{runner.addresses[0][1]}"

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


async def start_simulator(
    *,
    service: Service,
    port: int = 0,
    legacy_port: int | None = None,
    build_handler: Callable[[Service, Interface], RequestHandler] = RequestHandler,
) -> Simulator:
    """Starts a simulator; port 0 selects a free port. Raises ListenError."""
    simulator = Simulator(service)
    try:
        handler = build_handler(service, CurrentInterface(service))
        simulator.url = await simulator.listen(handler, port)
        if legacy_port is not None:
            handler = build_handler(service, LegacyInterface(service))
            simulator.legacy_url = await simulator.listen(handler, legacy_port)
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
