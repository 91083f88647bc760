"""Recording of requests, for tests and in recipients' activity logs (section 2.8)."""

from collections.abc import Mapping

from multidict import CIMultiDict

from gateway.simulator.exchange import Exchange, Seen
from gateway.simulator.service import Service
from gateway.simulator.state import World, iso
from gateway.simulator.wire import JsonObject

MASKED = "****"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


def enter(service: Service, exchange: Exchange) -> None:
    headers = {name: _without_secret(name, value) for name, value in exchange.headers.items()}
    status = None if exchange.dropped else exchange.status
    service.requests.append(
        Seen(
            exchange.method,
            exchange.target,
            CIMultiDict(headers),
            exchange.body,
            status,
            exchange.face,
        )
    )
    if exchange.arrived is None or not exchange.arrived.touched:
        return
    entry = _entry(exchange, exchange.arrived.world, headers)
    for recipient in exchange.arrived.touched:
        recipient.activities.append(entry)


def _without_secret(name: str, value: str) -> str:
    # Tests may see the access key of an Authorization header, but never the signature.
    if name.lower() not in SECRET_HEADERS:
        return value
    whose, colon, _ = value.partition(":")
    return f"{whose}:{MASKED}" if colon and name.lower() == "authorization" else MASKED


def _readable(value: str) -> str:
    # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot represent.
    return value.encode("utf-8", "replace").decode()


def _entry(exchange: Exchange, world: World, headers: Mapping[str, str]) -> JsonObject:
    shown = {
        name: MASKED if name.lower() in SECRET_HEADERS else _readable(value)
        for name, value in headers.items()
    }
    return {
        "ip": exchange.address,
        "url": _readable(exchange.target),
        "method": exchange.method,
        "headers": shown,
        "request": exchange.body.decode("utf-8", "replace"),
        "response": exchange.answer.decode("utf-8", "replace"),
        "code": exchange.status,
        "source": "api",
        "testMode": world.environment != "live",
        "createdAt": iso(world.now()),
    }
