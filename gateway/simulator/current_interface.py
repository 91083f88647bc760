"""The current interface: signed requests (sections 4, 5 and 7)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from gateway.simulator import deviations
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.current_operations import require_operation
from gateway.simulator.errors import ApiError, Problem
from gateway.simulator.exchange import Exchange, InterfaceName
from gateway.simulator.json_codec import InvalidJson, JsonObject, decode_json
from gateway.simulator.service import Service
from gateway.simulator.signature import authenticate_request, select_signed_target

BOOLEAN_PARAMETERS = ("primary",)


class CurrentInterface:
    name: InterfaceName = "current"
    headers: Mapping[str, str] = {}

    def __init__(self, service: Service) -> None:
        self.service = service

    def accept_request(self, exchange: Exchange) -> AcceptedRequest:
        service = self.service
        # The document does not say whether the path or the signature counts first: here the signature.
        credentials = authenticate_request(
            service.credentials,
            service.vocabulary,
            exchange.headers,
            now=service.clock(),
            method=exchange.method,
            target=select_signed_target(exchange.target, service.options),
            body=exchange.body,
            max_age_seconds=deviations.select_max_age(service.options.deviations),
        )
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        tenant = service.find_or_create_tenant(credentials.merchant, credentials.environment)
        return AcceptedRequest(tenant, query)

    def handle_operation(self, exchange: Exchange, request: AcceptedRequest) -> JsonObject:
        run_operation, request.path_ids = require_operation(
            exchange.method, exchange.path, request.tenant.vocabulary, request.tenant.options
        )
        # Arguments may also be query parameters (section 4); the body takes precedence.
        if exchange.method != "GET":
            request.body = {**_parse_query_arguments(request.query), **_parse_json_body(exchange)}
        deviations.change_request(exchange, request)
        answer = deviations.run_operation(exchange, request, run_operation)
        if request.tenant.options.answers == "bare":
            answer = _select_bare_answer(exchange, answer)
        # A copy, because answers without fields of their own are shared.
        return deviations.change_answer(request, dict(answer))

    def select_error_status(self, refusal: ApiError) -> int:
        return refusal.status_code(self.service.options.validation_status)


def _select_bare_answer(exchange: Exchange, answer: JsonObject) -> JsonObject:
    """Leaves of the answer to a write on batches only the id of a new object."""
    if exchange.method == "GET" or not exchange.path.startswith("/v1/batches"):
        return answer
    # Without the id no client could go on.
    is_create = exchange.method == "POST" and exchange.path.endswith(("/batches", "/payments"))
    return {name: {"id": value["id"]} for name, value in answer.items()} if is_create else {}


def _parse_query_arguments(query: Mapping[str, str]) -> JsonObject:
    """Parses query parameters into the types that the same fields have in a body."""
    arguments: dict[str, Any] = dict(query)
    if "ids" in query:
        arguments["ids"] = query["ids"].split(",")
    for name in BOOLEAN_PARAMETERS:
        if query.get(name) in ("true", "false"):
            arguments[name] = query[name] == "true"
    return arguments


def _parse_json_body(exchange: Exchange) -> JsonObject:
    """Parses the request body; an empty one counts as an empty object."""
    if not exchange.body:
        return {}
    # Section 5 requires the header when a body is sent.
    media_type = exchange.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(Problem("invalid_field", "Content-Type must be application/json"))
    try:
        body = decode_json(exchange.body)
    except InvalidJson:
        raise ApiError(Problem("invalid_field", "Body is not JSON")) from None
    if not isinstance(body, dict):
        raise ApiError(Problem("invalid_field", "Body is not an object"))
    return body
