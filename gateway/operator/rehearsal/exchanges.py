"""The calls of the service during a rehearsal, recorded with their answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.payloads import json_codec
from gateway.upstream.client import Reply, UpstreamClient
from mappings.effects import JSON

PROBE_ID = "rehearsal-probe"
"""The request id of the calls that a rehearsal makes itself."""


class Exchange(NamedTuple):
    """A call of the service. ``is_probe``: made by the rehearsal itself, not by the gateway.

    ``sent`` and ``body`` are the decoded bodies, empty if they are no JSON objects.
    """

    method: str
    path: str
    sent: dict[str, Any]
    body: dict[str, Any]
    reply: Reply
    is_probe: bool

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.reply.status < 300 and self.body.get("ok") is not False

    def __str__(self) -> str:
        return "accepted" if self.is_accepted else format_answer(self.reply.status, self.body)


def format_answer(status: int, body: JSON) -> str:
    """Formats status, codes and fields, without messages, which may quote data."""
    errors = list_errors(body)[:3]
    texts = [" on ".join(filter(None, (e.get("code"), e.get("field")))) for e in errors]
    return ", ".join([f"status {status}", *texts])


def list_errors(body: JSON) -> list[dict[str, Any]]:
    errors = body.get("errors") if isinstance(body, dict) else None
    return [entry for entry in errors or () if isinstance(entry, dict)]


class RecordingClient(UpstreamClient):
    """Sends requests like its base class, and records them with their answers."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.exchanges: list[Exchange] = []

    async def send(self, *request: Any, **options: Any) -> Reply:
        _environment, _credentials, method, target, body = request
        reply = await super().send(*request, **options)
        exchange = build_exchange(method, target, body, options["request_id"], reply)
        self.exchanges.append(exchange)
        return reply


def build_exchange(method: str, target: str, body: Any, request_id: str, reply: Reply) -> Exchange:
    sent, received = _decode(body or b""), _decode(reply.body)
    return Exchange(method, target.partition("?")[0], sent, received, reply, request_id == PROBE_ID)


def _decode(data: Any) -> dict[str, Any]:
    try:
        value = json_codec.loads(bytes(data))
    except json_codec.JsonError:
        return {}
    return value if isinstance(value, dict) else {}
