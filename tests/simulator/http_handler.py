"""HTTP request handling with faults and deviations, which records the requests."""

import asyncio

from aiohttp import web
from multidict import CIMultiDict

from gateway.simulator.current_interface import CurrentInterface
from gateway.simulator.requests import Exchange
from gateway.simulator.server import MASK, SECRET_HEADERS, Interface
from gateway.simulator.server import RequestHandler as SimulatorRequestHandler
from gateway.simulator.validation import ApiError
from tests.simulator import deviations
from tests.simulator.faults import Fault, InterfaceName, ReceivedRequest
from tests.simulator.service import BatchStart, Service


class RequestHandler(SimulatorRequestHandler):
    """Handles the requests of one interface, by default of the current one."""

    service: Service

    def __init__(self, service: Service, interface: Interface | None = None) -> None:
        if interface is None or isinstance(interface, CurrentInterface):
            interface = deviations.DeviatingInterface(service)
        super().__init__(service, interface)
        self.is_current = isinstance(interface, CurrentInterface)
        self.interface_name: InterfaceName = "current" if self.is_current else "legacy"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange, fault = await self.read_exchange(request), None
        # Before a fault is taken: a request that is refused for its credentials must not use one up.
        if self.accept_request(exchange):
            fault = self.service.take_fault(exchange.method, exchange.path, self.interface_name)
            await self._run_with_fault(exchange, fault or Fault("*", "*"))
        self.log_exchange(exchange)
        is_dropped = fault is not None and fault.close is not None
        self.service.requests.append(self._build_received_request(exchange, is_dropped=is_dropped))
        if is_dropped and request.transport is not None:
            request.transport.abort()
        # aiohttp needs a response even if the connection has been aborted; it is not sent then.
        return self.build_response(exchange)

    async def _run_with_fault(self, exchange: Exchange, fault: Fault) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.runs_operation:
            self.run_operation(exchange)
        # A separate delay, so that a test can cut the connection after the operation was executed.
        if fault.answer_delay:
            await asyncio.sleep(fault.answer_delay)
        if fault.answer_after is not None:
            await fault.answer_after.wait()
        if fault.status is not None:
            # After the operation: the response is wrong although the write was executed.
            exchange.status, exchange.response_body = fault.status, fault.body
            exchange.response_headers = dict(fault.headers)

    def run_operation(self, exchange: Exchange) -> None:
        super().run_operation(exchange)
        if exchange.method != "POST" or exchange.status != 200 or exchange.request is None:
            return
        if exchange.path.endswith("/accounts"):
            self.service.creation_counts["account"] += 1
        if exchange.path.rstrip("/").endswith("/start-processing"):
            tenant, batch = exchange.request.tenant, exchange.request.require_path_batch()
            self.service.batch_starts.append(
                BatchStart(tenant.merchant, tenant.environment, batch.id, tenant.clock())
            )

    def set_error_response(self, exchange: Exchange, error: ApiError) -> None:
        if self.is_current:
            error = deviations.change_error(exchange, self.service.options, error)
        super().set_error_response(exchange, error)

    def build_response(self, exchange: Exchange) -> web.Response:
        response = super().build_response(exchange)
        if "date-header" in self.service.options.deviations:
            response.headers["Date"] = ""  # aiohttp would add a header that is missing
        return response

    def _build_received_request(self, exchange: Exchange, *, is_dropped: bool) -> ReceivedRequest:
        headers = {name: _mask_secret(name, value) for name, value in exchange.headers.items()}
        return ReceivedRequest(
            exchange.method,
            exchange.target,
            CIMultiDict(headers),
            exchange.body,
            None if is_dropped else exchange.status,
            self.interface_name,
        )


def _mask_secret(name: str, value: str) -> str:
    # Tests may see the access key of an Authorization header, but never the signature.
    if name.lower() not in SECRET_HEADERS:
        return value
    access_key, colon, _ = value.partition(":")
    return f"{access_key}:{MASK}" if colon and name.lower() == "authorization" else MASK
