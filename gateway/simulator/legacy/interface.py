"""The legacy interface: an API key in a header (sections 4, 5 and 7)."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from gateway.simulator.arrived import Arrived
from gateway.simulator.exchange import Exchange, FaceName
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.loose import Number, tidied
from gateway.simulator.legacy.names import Names
from gateway.simulator.legacy.operations import Found, find, methods_of
from gateway.simulator.refusals import NoSuchOperation, Problem, Refusal
from gateway.simulator.service import Service
from gateway.simulator.wire import JsonObject, NotJson, read_json

# Section 7, without codes that no operation here returns.
STATUS = {
    "invalid_api_key": 403,
    "not_authorized": 403,
    "not_found": 404,
    "invalid_status": 406,
    "invalid_field": 406,
    "empty_field": 406,
    "expired_quote": 406,
}


class Legacy:
    name: FaceName = "legacy"
    headers: Mapping[str, str] = {"Access-Control-Allow-Origin": "*"}  # section 5, item 6

    def __init__(self, service: Service) -> None:
        self.service = service

    def admit(self, exchange: Exchange) -> Arrived:
        """Find the route, then check the API key, which geography and preflights do not need."""
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        if exchange.method == "OPTIONS" or not self._found(exchange).needs_key:
            # These operations need no data, so they get a tenant without a merchant.
            return Arrived(self.service.world("", ""), (), query, {})
        key = self.service.merchants.with_api_key(exchange.headers.get("X-API-Key", ""))
        if key is None:
            raise Refusal(Problem("invalid_api_key", "Invalid API key"))
        return Arrived(self.service.world(key.merchant, key.environment), (), query, {})

    def answer(self, exchange: Exchange, arrived: Arrived) -> JsonObject:
        if exchange.method == "OPTIONS":
            return self._preflight(exchange)
        found = self._found(exchange)
        body = _read_body(exchange.body) if found.takes_body else {}
        names = Names(arrived.world)
        asked = Asked(arrived.world, names, found.ids, arrived.query, body, arrived.touched)
        return found.operation(asked)

    def status(self, refusal: Refusal) -> int:
        return STATUS.get(refusal.problems[0].code, 500)

    def _found(self, exchange: Exchange) -> Found:
        found = find(exchange.method, exchange.path, self.service.words.legacy)
        if found is None:
            raise NoSuchOperation
        return found

    def _preflight(self, exchange: Exchange) -> JsonObject:
        methods = methods_of(exchange.path, self.service.words.legacy)
        if not methods:
            raise NoSuchOperation
        exchange.answer_headers = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": "X-API-Key, Content-Type",
        }
        return {}


def _read_body(sent: bytes) -> JsonObject:
    # The Content-Type is not checked: section 5 asks for one, but clients omit it.
    try:
        body = read_json(sent, Number)
    except NotJson:
        raise Refusal(Problem("invalid_field", "Body is not JSON")) from None
    if not isinstance(body, dict):
        raise Refusal(Problem("invalid_field", "Body is not an object"))
    read: JsonObject = tidied(body)
    return read
