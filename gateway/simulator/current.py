"""The current interface: signed requests (sections 4, 5 and 7)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from gateway.simulator.arrived import Arrived
from gateway.simulator.exchange import Exchange, FaceName
from gateway.simulator.operations import find_operation
from gateway.simulator.refusals import Problem, Refusal
from gateway.simulator.service import Service
from gateway.simulator.signature import caller, signed_part
from gateway.simulator.wire import JsonObject, NotJson, read_json

FLAGS = ("primary", "apikey", "enabled")


class Current:
    name: FaceName = "current"
    headers: Mapping[str, str] = {}

    def __init__(self, service: Service) -> None:
        self.service = service

    def admit(self, exchange: Exchange) -> Arrived:
        service = self.service
        key = caller(
            service.keys,
            service.words,
            exchange.headers,
            now=service.clock(),
            method=exchange.method,
            target=signed_part(exchange.target, service.switches),
            body=exchange.body,
        )
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        return Arrived(service.world(key.merchant, key.environment), (), query, {})

    def answer(self, exchange: Exchange, arrived: Arrived) -> JsonObject:
        operation, arrived.ids = find_operation(
            exchange.method, exchange.path, arrived.world.words, arrived.world.switches
        )
        if exchange.method != "GET":
            arrived.body = {**_arguments(arrived.query), **_read_body(exchange)}
        return operation(arrived)

    def status(self, refusal: Refusal) -> int:
        return refusal.status(self.service.switches.validation_status)


def _arguments(query: Mapping[str, str]) -> JsonObject:
    """Parse query parameters into the types that the same fields have in a body."""
    arguments: dict[str, Any] = dict(query)
    if "ids" in query:
        arguments["ids"] = query["ids"].split(",")
    for name in FLAGS:
        if query.get(name) in ("true", "false"):
            arguments[name] = query[name] == "true"
    return arguments


def _read_body(exchange: Exchange) -> JsonObject:
    """Parse the request body; an empty one counts as an empty object."""
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
