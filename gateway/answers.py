"""HTTP answers of the legacy interface: compact JSON that begins with ``ok``, and their headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from gateway import wire
from gateway.limits import Admission
from mappings.errors import ErrorAnswer
from mappings.grammar import JSON

SERVER = "payout-gateway"

PREFLIGHT_SECONDS = 86_400
"""How long a browser may remember a preflight."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a client is told: status, body (``ok`` first) and the headers of this answer alone."""

    status: int
    body: Mapping[str, JSON]
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False


def done(body: Mapping[str, JSON]) -> Said:
    """Success status is 200, for deletes too: an empty body breaks clients in the field."""
    return Said(200, {"ok": True, **body})


def refusal(answer: ErrorAnswer, *, closes: bool = False) -> Said:
    waits = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    return Said(answer.status, answer.body(), waits, closes)


def preflight(methods: Iterable[str]) -> Said:
    """The answer to a browser that asks first: any origin, the methods of the path."""
    return Said(
        200,
        {"ok": True},
        {
            "Access-Control-Allow-Methods": ", ".join([*methods, "OPTIONS"]),
            "Access-Control-Allow-Headers": "X-API-Key, Content-Type",
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def response(said: Said, request_id: str, admission: Admission | None = None) -> web.Response:
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Access-Control-Allow-Origin": "*",
        "Server": SERVER,
        "X-Request-Id": request_id,
        **_limit_headers(admission),
        **said.headers,
    }
    made = web.Response(status=said.status, body=wire.write(said.body), headers=headers)
    if said.closes:
        made.force_close()
    return made


def _limit_headers(admission: Admission | None) -> dict[str, str]:
    if admission is None:
        return {}
    return {
        "RateLimit-Limit": str(admission.limit),
        "RateLimit-Remaining": str(admission.remaining),
        "RateLimit-Reset": str(admission.reset_seconds),
    }
