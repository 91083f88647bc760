"""HTTP request handling that both interfaces share."""

import asyncio
import logging
from collections.abc import Mapping
from email.utils import formatdate

from aiohttp import web
from multidict import CIMultiDict

from gateway.simulator import batches, deviations
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.current_interface import CurrentInterface
from gateway.simulator.errors import ApiError, Problem
from gateway.simulator.exchange import Exchange, Fault, ReceivedRequest
from gateway.simulator.json_codec import JsonObject, encode_json
from gateway.simulator.legacy.interface import LegacyInterface
from gateway.simulator.service import Service
from gateway.simulator.state import format_timestamp

log = logging.getLogger(__name__)

MASK = "****"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


class RequestHandler:
    """Handles the requests of one interface, by default of the current one."""

    def __init__(self, service: Service, interface: LegacyInterface | None = None) -> None:
        self.service = service
        self.interface: CurrentInterface | LegacyInterface = interface or CurrentInterface(service)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            body=await request.read(),
            address=request.remote or "",
            interface=self.interface.name,
        )
        fault = None
        # Before a fault is taken: a request that is refused for its credentials must not use one up.
        try:
            exchange.request = self.interface.accept_request(exchange)
        except ApiError as error:
            self._set_error_response(exchange, error)
        else:
            fault = self.service.take_fault(exchange.method, exchange.path, exchange.interface)
            await self._run_with_fault(exchange, exchange.request, fault or Fault("*", "*"))
        is_dropped = fault is not None and fault.close is not None
        # After the operation, because a recipient's log also contains the response.
        self._record_request(exchange, is_dropped=is_dropped)
        if is_dropped and request.transport is not None:
            request.transport.abort()
        # aiohttp needs a response even if the connection has been aborted; it is not sent then.
        return self._build_response(exchange)

    async def _run_with_fault(
        self, exchange: Exchange, request: AcceptedRequest, fault: Fault
    ) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.runs_operation:
            self._run_operation(exchange, request)
        # A separate delay, so that a test can cut the connection after the operation was executed.
        if fault.answer_delay:
            await asyncio.sleep(fault.answer_delay)
        if fault.status is not None:
            # After the operation: the response is wrong although the write was executed.
            exchange.status, exchange.response_body = fault.status, fault.body
            exchange.response_headers = dict(fault.headers)

    def _run_operation(self, exchange: Exchange, request: AcceptedRequest) -> None:
        try:
            # Processing has no task of its own: each request first brings its tenant up to date.
            batches.finish_due_batches(request.tenant)
            answer = self.interface.handle_operation(exchange, request)
            exchange.response_body = encode_json({"ok": True, **answer})
        except ApiError as error:
            self._set_error_response(exchange, error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            failure = ApiError(Problem("internal_server_error", "Internal error"))
            self._set_error_response(exchange, failure)

    def _set_error_response(self, exchange: Exchange, error: ApiError) -> None:
        if exchange.interface == "current":
            error = deviations.change_error(exchange, self.service.options.deviations, error)
        exchange.status = self.interface.select_error_status(error)
        exchange.response_body = encode_json(error.build_body())

    def _build_response(self, exchange: Exchange) -> web.Response:
        # From the service's own clock, which tests may set apart from the client's. An empty date,
        # because aiohttp would add a header that is missing.
        has_date = "date-header" not in self.service.options.deviations
        headers = CIMultiDict(
            {
                "Content-Type": "application/json; charset=utf-8",
                "Date": formatdate(self.service.clock(), usegmt=True) if has_date else "",
                "Server": "simulator",
                **self.interface.headers,
            }
        )
        headers.update(exchange.response_headers)
        return web.Response(status=exchange.status, body=exchange.response_body, headers=headers)

    def _record_request(self, exchange: Exchange, *, is_dropped: bool) -> None:
        headers = {name: _mask_secret(name, value) for name, value in exchange.headers.items()}
        received_request = ReceivedRequest(
            exchange.method,
            exchange.target,
            CIMultiDict(headers),
            exchange.body,
            None if is_dropped else exchange.status,
            exchange.interface,
        )
        self.service.requests.append(received_request)
        # A request that names several recipients is in the log of each.
        if request := exchange.request:
            for recipient in request.logged_recipients:
                recipient.activities.append(_build_log_entry(exchange, request, headers))


def _mask_secret(name: str, value: str) -> str:
    # Tests may see the access key of an Authorization header, but never the signature.
    if name.lower() not in SECRET_HEADERS:
        return value
    access_key, colon, _ = value.partition(":")
    return f"{access_key}:{MASK}" if colon and name.lower() == "authorization" else MASK


def _replace_lone_surrogates(value: str) -> str:
    # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot represent.
    return value.encode("utf-8", "replace").decode()


def _build_log_entry(
    exchange: Exchange, request: AcceptedRequest, headers: Mapping[str, str]
) -> JsonObject:
    return {
        "ip": exchange.address,
        "url": _replace_lone_surrogates(exchange.target),
        "method": exchange.method,
        "headers": {
            name: MASK if name.lower() in SECRET_HEADERS else _replace_lone_surrogates(value)
            for name, value in headers.items()
        },
        "request": exchange.body.decode("utf-8", "replace"),
        "response": exchange.response_body.decode("utf-8", "replace"),
        "code": exchange.status,
        "source": "api",
        # Section 2.8 does not define it; only the live environment pays anybody.
        "testMode": request.tenant.environment != "live",
        "createdAt": format_timestamp(request.tenant.now()),
    }
