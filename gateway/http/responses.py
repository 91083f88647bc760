"""Responses of the legacy interface: compact JSON that begins with ``ok``, and headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from aiohttp import web
from multidict import CIMultiDict

from gateway.admission.limits import Admission
from gateway.http.bodies import Body, Whole
from gateway.payloads import json_codec
from mappings.errors import ErrorAnswer
from mappings.grammar import JSON
from mappings.unchanging import unchanging

SERVER = "payout-gateway"

NOTHING: Mapping[str, str] = {}

PREFLIGHT_SECONDS = 86_400
"""How long a browser may cache a preflight response."""


@unchanging(frozen=True, slots=True)
class LegacyResponse:
    """A response to a legacy client: status, body (``ok`` first) and its specific headers.

    ``chunks`` is the encoded body, if it is long or was encoded for an earlier try.
    """

    status: int
    body: Mapping[str, JSON]
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False
    written: Sequence[bytes] | None = field(default=None, repr=False)

    @property
    def data(self) -> bytes:
        return json_codec.dumps(self.body) if self.written is None else b"".join(self.written)

    @property
    def is_long(self) -> bool:
        return self.written is not None and sum(map(len, self.written)) > json_codec.LARGE


@unchanging(frozen=True, slots=True)
class PassedResponse:
    """The legacy service's response to a forwarded request."""

    status: int
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)


def build_success_response(body: Mapping[str, JSON]) -> LegacyResponse:
    """Builds a 200 response, also for deletes: existing clients fail on an empty body."""
    return LegacyResponse(200, {"ok": True, **body})


def build_error_response(answer: ErrorAnswer, *, closes: bool = False) -> LegacyResponse:
    waits = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    return LegacyResponse(answer.status, answer.body(), waits, closes)


def build_preflight_response(
    methods: Iterable[str], headers: Iterable[str] = ("X-API-Key", "Content-Type")
) -> LegacyResponse:
    """Builds the response to a CORS preflight: any origin, and the methods of the path."""
    return LegacyResponse(
        200,
        {"ok": True},
        {
            "Access-Control-Allow-Methods": ", ".join([*methods, "OPTIONS"]),
            "Access-Control-Allow-Headers": ", ".join(headers),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def build_web_response(
    said: LegacyResponse,
    request_id: str,
    admission: Admission | None = None,
    told: Mapping[str, str] = NOTHING,
) -> web.StreamResponse:
    """Builds the aiohttp response, with the headers that every response has."""
    headers = {
        **told,
        "Content-Type": "application/json; charset=utf-8",
        "Access-Control-Allow-Origin": "*",
        "Server": SERVER,
        "X-Request-Id": request_id,
        **build_rate_limit_headers(admission),
        # Last, so that a response can override any of them.
        **said.headers,
    }
    made: web.StreamResponse
    if said.written is None:
        made = Whole(said.status, said.data, headers)
    else:
        made = web.Response(status=said.status, body=Body(*said.written), headers=headers)
    if said.closes:
        made.force_close()
    return made


def build_passthrough_response(
    one: PassedResponse,
    request_id: str,
    admission: Admission | None = None,
    told: Mapping[str, str] = NOTHING,
) -> web.Response:
    """Builds the aiohttp response from a forwarded one, with the headers that every response has.

    The gateway's deprecation dates replace the service's, because two dates would be ambiguous.
    ``Link`` is a list, so the service's links stay.
    """
    # A copy, because shadow traffic still compares the original.
    headers = one.headers.copy()
    if not any(name.lower().startswith("ratelimit") for name in headers):
        headers.update(build_rate_limit_headers(admission))
    headers["Server"] = SERVER
    headers["X-Request-Id"] = request_id
    headers.setdefault("Access-Control-Allow-Origin", "*")
    for name, value in told.items():
        if name == "Link":
            headers.add(name, value)
        else:
            headers[name] = value
    return web.Response(status=one.status, body=one.body, headers=headers)


def build_rate_limit_headers(admission: Admission | None) -> dict[str, str]:
    if admission is None:
        return {}
    return {
        "RateLimit-Limit": str(admission.limit),
        "RateLimit-Remaining": str(admission.remaining),
        "RateLimit-Reset": str(admission.reset_seconds),
    }
