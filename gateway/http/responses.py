"""Responses of the legacy interface: compact JSON that begins with ``ok``, and headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from multidict import CIMultiDict

from gateway.admission.limits import Admission
from gateway.http.response import HttpResponse
from gateway.payloads import json_codec
from mappings.effects import JSON
from mappings.errors import ErrorAnswer
from mappings.frozen import frozen_dataclass

SERVER = "payout-gateway"

NO_HEADERS: Mapping[str, str] = {}

PREFLIGHT_SECONDS = 86_400
"""How long a browser may cache a preflight response."""


@frozen_dataclass(frozen=True, slots=True)
class LegacyResponse:
    """A response to a legacy client: status, body (``ok`` first) and its specific headers.

    ``chunks`` is the encoded body, if it is long or was encoded for an earlier try.
    """

    status: int
    body: Mapping[str, JSON]
    headers: Mapping[str, str] = field(default_factory=dict)
    closes_connection: bool = False
    chunks: Sequence[bytes] | None = field(default=None, repr=False)

    @property
    def body_bytes(self) -> bytes:
        if self.chunks is not None:
            return b"".join(self.chunks)
        # Not looked through for what JSON cannot represent exactly: the values come from decoded
        # JSON and from the tables, whose transcripts are.
        return json_codec.dumps_trusted(self.body)

    @property
    def is_long(self) -> bool:
        return self.chunks is not None and sum(map(len, self.chunks)) > json_codec.LARGE_BYTES


@frozen_dataclass(frozen=True, slots=True)
class PassedResponse:
    """The legacy service's response to a forwarded request."""

    status: int
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)


def build_success_response(body: Mapping[str, JSON]) -> LegacyResponse:
    """Builds a 200 response, also for deletes: existing clients fail on an empty body."""
    return LegacyResponse(200, {"ok": True, **body})


def build_error_response(answer: ErrorAnswer, *, closes_connection: bool = False) -> LegacyResponse:
    headers = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    return LegacyResponse(answer.status, answer.build_body(), headers, closes_connection)


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


def build_http_response(
    legacy_response: LegacyResponse,
    request_id: str,
    admission: Admission | None = None,
    deprecation_headers: Mapping[str, str] = NO_HEADERS,
) -> HttpResponse:
    """Builds the HTTP response, with the headers that every response has."""
    headers = {
        **deprecation_headers,
        "Content-Type": "application/json; charset=utf-8",
        "Access-Control-Allow-Origin": "*",
        "Server": SERVER,
        "X-Request-Id": request_id,
    }
    if admission is not None:
        headers["RateLimit-Limit"] = str(admission.limit)
        headers["RateLimit-Remaining"] = str(admission.remaining)
        headers["RateLimit-Reset"] = str(admission.reset_seconds)
    # Applied last, so that a response can override any of them.
    headers.update(legacy_response.headers)
    chunks = legacy_response.chunks
    return HttpResponse(
        legacy_response.status,
        headers,
        *(chunks if chunks is not None else (legacy_response.body_bytes,)),
        closes_connection=legacy_response.closes_connection,
    )


def build_passthrough_response(
    passed_response: PassedResponse,
    request_id: str,
    admission: Admission | None = None,
    own_headers: Mapping[str, str] = NO_HEADERS,
) -> HttpResponse:
    """Builds the HTTP response from a forwarded one, with the headers that every response has.

    ``own_headers`` replace the service's: two deprecation dates would be ambiguous.
    ``Link`` is a list, so the service's links stay.
    """
    # A copy, because shadow traffic still compares the original.
    headers = passed_response.headers.copy()
    # Both count the same key, so the service's rate limit numbers would contradict the gateway's.
    if not any(name.lower().startswith("ratelimit") for name in headers):
        headers.update(build_rate_limit_headers(admission))
    headers["Server"] = SERVER
    headers["X-Request-Id"] = request_id
    headers.setdefault("Access-Control-Allow-Origin", "*")
    for name, value in own_headers.items():
        if name == "Link":
            headers.add(name, value)
        else:
            headers[name] = value
    return HttpResponse(passed_response.status, headers, passed_response.body)


def build_rate_limit_headers(admission: Admission | None) -> dict[str, str]:
    if admission is None:
        return {}
    return {
        "RateLimit-Limit": str(admission.limit),
        "RateLimit-Remaining": str(admission.remaining),
        "RateLimit-Reset": str(admission.reset_seconds),
    }
