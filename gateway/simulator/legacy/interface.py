"""The legacy interface: an API key in a header (sections 4, 5 and 7)."""

from collections.abc import Mapping
from typing import cast
from urllib.parse import parse_qsl

from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.errors import ApiError, OperationNotFound, Problem
from gateway.simulator.exchange import Exchange, InterfaceName
from gateway.simulator.json_codec import InvalidJson, JsonObject, decode_json
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.legacy.lenient import JsonNumber, drop_empty_and_stringify_integers
from gateway.simulator.legacy.operations import (
    BODYLESS_OPERATIONS,
    KEYLESS_OPERATION,
    Operation,
    list_routes,
)
from gateway.simulator.routes import find_route
from gateway.simulator.service import Service

# Section 7, without codes that no operation here returns.
STATUS_BY_CODE = {
    "invalid_api_key": 403,
    "not_authorized": 403,
    "not_found": 404,
    "invalid_status": 406,
    "invalid_field": 406,
    "empty_field": 406,
    "expired_quote": 406,
}


class LegacyInterface:
    name: InterfaceName = "legacy"
    headers: Mapping[str, str] = {"Access-Control-Allow-Origin": "*"}  # section 5, item 6

    def __init__(self, service: Service) -> None:
        self.service = service

    def accept_request(self, exchange: Exchange) -> LegacyRequest:
        """Finds the route, then checks the API key, which geography and preflights do not need."""
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        if exchange.method == "OPTIONS" or self._require_route(exchange)[0] == KEYLESS_OPERATION:
            # These operations need no data, so they get a tenant without a merchant.
            return LegacyRequest(self.service.find_or_create_tenant("", ""), query)
        pair = self.service.find_credentials_by_api_key(exchange.headers.get("X-API-Key", ""))
        if pair is None:
            raise ApiError(Problem("invalid_api_key", "Invalid API key"))
        tenant = self.service.find_or_create_tenant(pair.merchant, pair.environment)
        return LegacyRequest(tenant, query)

    def handle_operation(self, exchange: Exchange, request: AcceptedRequest) -> JsonObject:
        if exchange.method == "OPTIONS":
            return self._answer_preflight(exchange)
        run_operation, request.path_ids = self._require_route(exchange)
        if exchange.method != "GET" and run_operation not in BODYLESS_OPERATIONS:
            request.body = _parse_json_body(exchange.body)
        return run_operation(cast("LegacyRequest", request))

    def select_error_status(self, error: ApiError) -> int:
        return STATUS_BY_CODE.get(error.problems[0].code, 500)

    def _require_route(self, exchange: Exchange) -> tuple[Operation, tuple[str, ...]]:
        routes = list_routes(self.service.vocabulary.legacy)
        route = find_route(routes, exchange.method, exchange.path)
        if route is None:
            raise OperationNotFound
        return route

    def _answer_preflight(self, exchange: Exchange) -> JsonObject:
        routes = list_routes(self.service.vocabulary.legacy)
        methods = [each.method for each in routes if each.path_pattern.fullmatch(exchange.path)]
        if not methods:
            raise OperationNotFound
        exchange.response_headers = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": "X-API-Key, Content-Type",
        }
        return {}


def _parse_json_body(data: bytes) -> JsonObject:
    # The Content-Type is not checked: section 5 asks for one, but clients omit it.
    try:
        body = decode_json(data, JsonNumber)
    except InvalidJson:
        raise ApiError(Problem("invalid_field", "Body is not JSON")) from None
    if not isinstance(body, dict):
        raise ApiError(Problem("invalid_field", "Body is not an object"))
    normalized: JsonObject = drop_empty_and_stringify_integers(body)
    return normalized
