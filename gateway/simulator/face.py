"""HTTP request handling that both interfaces share."""

import asyncio
import logging
from collections.abc import Mapping
from email.utils import formatdate
from typing import Protocol

from aiohttp import web
from multidict import CIMultiDict

from gateway.simulator import activity, processing
from gateway.simulator.arrived import Arrived
from gateway.simulator.current import Current
from gateway.simulator.exchange import Exchange, FaceName
from gateway.simulator.faults import Fault
from gateway.simulator.refusals import Problem, Refusal
from gateway.simulator.service import Service
from gateway.simulator.wire import JsonObject, write_json

log = logging.getLogger(__name__)


class Interface(Protocol):
    """The rules of one interface document. Each method that handles a request raises ApiError."""

    name: FaceName
    headers: Mapping[str, str]

    def admit(self, exchange: Exchange) -> Arrived:
        """Identify the caller."""

    def answer(self, exchange: Exchange, arrived: Arrived) -> JsonObject:
        """Run the operation and return the fields that follow `ok` in the response."""

    def status(self, refusal: Refusal) -> int: ...


class Face:
    """Handles the requests of one interface, by default of the current one."""

    def __init__(self, service: Service, interface: Interface | None = None) -> None:
        self.service = service
        self.interface = interface or Current(service)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            body=await request.read(),
            address=request.remote or "",
            face=self.interface.name,
        )
        fault = self._admit(exchange)
        if exchange.arrived is not None:
            await self._perform(exchange, exchange.arrived, fault)
        exchange.dropped = fault is not None and fault.close is not None
        # After the operation, because a recipient's log also contains the response.
        activity.enter(self.service, exchange)
        if exchange.dropped and request.transport is not None:
            request.transport.abort()
        # aiohttp needs a response even if the connection has been aborted; it is not sent then.
        return self._response(exchange)

    def _admit(self, exchange: Exchange) -> Fault | None:
        """Authenticate the caller, then take the next matching fault."""
        # In this order: a request that is refused for its credentials must not use up a fault.
        try:
            exchange.arrived = self.interface.admit(exchange)
        except Refusal as refusal:
            self._refuse(exchange, refusal)
            return None
        return self.service.take_fault(exchange.method, exchange.path, self.interface.name)

    async def _perform(self, exchange: Exchange, arrived: Arrived, fault: Fault | None) -> None:
        if fault is None:
            self._run(exchange, arrived)
            return
        await asyncio.sleep(fault.delay)
        if fault.runs_operation:
            self._run(exchange, arrived)
        await asyncio.sleep(fault.answer_delay)
        if fault.status is not None:
            exchange.status, exchange.answer = fault.status, fault.body
            exchange.answer_headers = dict(fault.headers)

    def _run(self, exchange: Exchange, arrived: Arrived) -> None:
        try:
            processing.finish_due(arrived.world)
            exchange.answer = write_json({"ok": True, **self.interface.answer(exchange, arrived)})
        except Refusal as refusal:
            self._refuse(exchange, refusal)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            self._refuse(exchange, Refusal(Problem("internal_server_error", "Internal error")))

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.status = self.interface.status(refusal)
        exchange.answer = write_json(refusal.as_json())

    def _response(self, exchange: Exchange) -> web.Response:
        headers = CIMultiDict(
            {
                "Content-Type": "application/json; charset=utf-8",
                "Date": formatdate(self.service.clock(), usegmt=True),
                "Server": "simulator",
                **self.interface.headers,
            }
        )
        headers.update(exchange.answer_headers)
        return web.Response(status=exchange.status, body=exchange.answer, headers=headers)
