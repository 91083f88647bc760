"""The current interface over HTTP (sections 4, 5 and 7)."""

import asyncio
import logging
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from multidict import CIMultiDict

from gateway.simulator import activity, processing
from gateway.simulator.arrived import Arrived
from gateway.simulator.exchange import Exchange
from gateway.simulator.faults import Fault
from gateway.simulator.operations import find_operation
from gateway.simulator.refusals import Problem, Refusal
from gateway.simulator.service import Service
from gateway.simulator.signature import caller, signed_part
from gateway.simulator.wire import JsonObject, NotJson, read_json, write_json

log = logging.getLogger(__name__)


class Face:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            body=await request.read(),
            address=request.remote or "",
        )
        fault = self._accept(exchange)
        if exchange.arrived is not None:
            await self._perform(exchange, exchange.arrived, fault)
        exchange.dropped = fault is not None and fault.close is not None
        activity.enter(self.service, exchange)
        if exchange.dropped and request.transport is not None:
            request.transport.abort()
        return self._response(exchange)

    def _accept(self, exchange: Exchange) -> Fault | None:
        """Who is calling comes first: a fault is met by accepted requests only."""
        service = self.service
        try:
            key = caller(
                service.keys,
                service.words,
                exchange.headers,
                now=service.clock(),
                method=exchange.method,
                target=signed_part(exchange.target, service.switches),
                body=exchange.body,
            )
        except Refusal as refusal:
            self._refuse(exchange, refusal)
            return None
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        world = service.world(key.merchant, key.environment)
        exchange.arrived = Arrived(world, (), query, {})
        return service.take_fault(exchange.method, exchange.path)

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
            operation, arrived.ids = find_operation(
                exchange.method, exchange.path, arrived.world.words, arrived.world.switches
            )
            if exchange.method != "GET":
                arrived.body = {**_arguments(arrived.query), **_read_body(exchange)}
            exchange.answer = write_json({"ok": True, **operation(arrived)})
        except Refusal as refusal:
            self._refuse(exchange, refusal)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            self._refuse(exchange, Refusal(Problem("internal_server_error", "Internal error")))

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.status = refusal.status(self.service.switches.validation_status)
        exchange.answer = write_json(refusal.as_json())

    def _response(self, exchange: Exchange) -> web.Response:
        headers = CIMultiDict(
            {
                "Content-Type": "application/json; charset=utf-8",
                "Date": formatdate(self.service.clock(), usegmt=True),
                "Server": "simulator",
            }
        )
        headers.update(exchange.answer_headers)
        return web.Response(status=exchange.status, body=exchange.answer, headers=headers)


def _arguments(query: Mapping[str, str]) -> JsonObject:
    """A query's arguments as a body would have them: the two that are not text."""
    arguments: dict[str, Any] = dict(query)
    if "ids" in query:
        arguments["ids"] = query["ids"].split(",")
    if query.get("primary") in ("true", "false"):
        arguments["primary"] = query["primary"] == "true"
    return arguments


def _read_body(exchange: Exchange) -> JsonObject:
    """No body is as good as an empty object."""
    if not exchange.body:
        return {}
    # Section 5 requires the header when a body is sent.
    kind = exchange.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(Problem("invalid_field", "Content-Type must be application/json"))
    try:
        body = read_json(exchange.body)
    except NotJson:
        raise Refusal(Problem("invalid_field", "Body is not JSON")) from None
    if not isinstance(body, dict):
        raise Refusal(Problem("invalid_field", "Body is not an object"))
    return body
