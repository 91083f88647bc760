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
from gateway.simulator.state import Tenant, format_timestamp

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
        fault = self._authenticate_and_take_fault(exchange)
        if exchange.request is not None:
            await self._run_with_fault(exchange, exchange.request, fault)
        exchange.is_dropped = fault is not None and fault.close is not None
        # After the operation, because a recipient's log also contains the response.
        _record_request(self.service, exchange)
        if exchange.is_dropped and request.transport is not None:
            request.transport.abort()
        # aiohttp needs a response even if the connection has been aborted; it is not sent then.
        return self._build_response(exchange)

    def _authenticate_and_take_fault(self, exchange: Exchange) -> Fault | None:
        """Authenticates the caller, then takes the next matching fault."""
        # In this order: a request that is refused for its credentials must not use up a fault.
        try:
            exchange.request = self.interface.accept_request(exchange)
        except ApiError as error:
            self._set_error_response(exchange, error)
            return None
        return self.service.take_fault(exchange.method, exchange.path, self.interface.name)

    async def _run_with_fault(
        self, exchange: Exchange, request: AcceptedRequest, fault: Fault | None
    ) -> None:
        if fault is None:
            self._run_operation(exchange, request)
            return
        await asyncio.sleep(fault.delay)
        if fault.runs_operation:
            self._run_operation(exchange, request)
        # A separate delay, so that a test can cut the connection after the operation was executed.
        await asyncio.sleep(fault.answer_delay)
        if fault.status is not None:
            # After the operation: the response is wrong although the write was executed.
            exchange.status, exchange.response_body = fault.status, fault.body
            exchange.response_headers = dict(fault.headers)

    def _run_operation(self, exchange: Exchange, request: AcceptedRequest) -> None:
        try:
            # Processing has no task of its own: each request first brings its tenant up to date.
            batches.finish_due_batches(request.tenant)
            exchange.response_body = encode_json(
                {"ok": True, **self.interface.handle_operation(exchange, request)}
            )
        except ApiError as error:
            self._set_error_response(exchange, error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            self._set_error_response(
                exchange, ApiError(Problem("internal_server_error", "Internal error"))
            )

    def _set_error_response(self, exchange: Exchange, error: ApiError) -> None:
        if self.interface.name == "current":
            error = deviations.change_error(exchange, self.service.options.deviations, error)
        exchange.status = self.interface.select_error_status(error)
        exchange.response_body = encode_json(error.build_body())

    def _build_response(self, exchange: Exchange) -> web.Response:
        headers = CIMultiDict(
            {
                "Content-Type": "application/json; charset=utf-8",
                "Date": self._format_date_header(),
                "Server": "simulator",
                **self.interface.headers,
            }
        )
        headers.update(exchange.response_headers)
        return web.Response(status=exchange.status, body=exchange.response_body, headers=headers)

    def _format_date_header(self) -> str:
        if "date-header" in self.service.options.deviations:
            return ""  # aiohttp would add a header that is missing
        # From the service's own clock, which tests may set apart from the client's.
        return formatdate(self.service.clock(), usegmt=True)


def _record_request(service: Service, exchange: Exchange) -> None:
    headers = {name: _mask_secret_header(name, value) for name, value in exchange.headers.items()}
    status, line = (
        None if exchange.is_dropped else exchange.status,
        (exchange.method, exchange.target),
    )
    service.requests.append(
        ReceivedRequest(*line, CIMultiDict(headers), exchange.body, status, exchange.interface)
    )
    # A request that names several recipients is in the log of each.
    if request := exchange.request:
        for recipient in request.logged_recipients:
            recipient.activities.append(_build_log_entry(exchange, request.tenant, headers))


def _mask_secret_header(name: str, value: str) -> str:
    # Tests may see the access key of an Authorization header, but never the signature.
    if name.lower() not in SECRET_HEADERS:
        return value
    access_key, colon, _ = value.partition(":")
    return f"{access_key}:{MASK}" if colon and name.lower() == "authorization" else MASK


def _replace_lone_surrogates(value: str) -> str:
    # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot represent.
    return value.encode("utf-8", "replace").decode()


def _build_log_entry(exchange: Exchange, tenant: Tenant, headers: Mapping[str, str]) -> JsonObject:
    logged_headers = {
        name: MASK if name.lower() in SECRET_HEADERS else _replace_lone_surrogates(value)
        for name, value in headers.items()
    }
    return {
        "ip": exchange.address,
        "url": _replace_lone_surrogates(exchange.target),
        "method": exchange.method,
        "headers": logged_headers,
        "request": exchange.body.decode("utf-8", "replace"),
        "response": exchange.response_body.decode("utf-8", "replace"),
        "code": exchange.status,
        "source": "api",
        # Section 2.8 does not define it; only the live environment pays anybody.
        "testMode": tenant.environment != "live",
        "createdAt": format_timestamp(tenant.now()),
    }
