"""Recording of requests, for tests and in recipients' activity logs (section 2.8)."""

from collections.abc import Mapping

from multidict import CIMultiDict

from gateway.simulator.exchange import Exchange, ReceivedRequest
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.service import Service
from gateway.simulator.state import Tenant, format_timestamp

MASK = "****"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


def record_request(service: Service, exchange: Exchange) -> None:
    headers = {name: _mask_secret_header(name, value) for name, value in exchange.headers.items()}
    status = None if exchange.is_dropped else exchange.status
    service.requests.append(
        ReceivedRequest(
            exchange.method,
            exchange.target,
            CIMultiDict(headers),
            exchange.body,
            status,
            exchange.interface,
        )
    )
    if exchange.request is None or not exchange.request.logged_recipients:
        return
    entry = _build_log_entry(exchange, exchange.request.tenant, headers)
    # One entry for all of them: a request that names several recipients is in the log of each.
    for recipient in exchange.request.logged_recipients:
        recipient.activities.append(entry)


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
