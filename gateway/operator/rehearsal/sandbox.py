"""The sandbox of a rehearsal: the gateway in front of it, and signed calls beside the gateway."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.payloads import json_codec
from gateway.upstream.client import Reply, UpstreamClient, open_upstream_client
from gateway.upstream.clock import ServiceClock
from mappings.effects import JSON
from mappings.failures import Unknown, Unreachable

ENVIRONMENT = "sandbox"

OLD_SECONDS = 3600
"""Age of a timestamp that the service must refuse."""


class ServiceSilent(Exception):
    """The service did not answer a call of the rehearsal. The message is one line."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of the service. ``is_probe``: made by the rehearsal itself, not by the gateway.

    ``sent`` and ``body`` are the decoded bodies, empty if they are no JSON objects.
    """

    method: str
    target: str
    sent: dict[str, Any]
    body: dict[str, Any]
    reply: Reply
    is_probe: bool

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def status(self) -> int:
        return self.reply.status

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300 and self.body.get("ok") is not False

    @property
    def errors(self) -> list[dict[str, Any]]:
        return _list_errors(self.body)

    def __str__(self) -> str:
        return "accepted" if self.is_accepted else format_refusal(self.status, self.body)


def format_refusal(status: int, body: JSON) -> str:
    """Formats status, codes and fields, without messages, which may quote data."""
    texts = [
        f"{error.get('code')}" + (f" on {error['field']}" if error.get("field") else "")
        for error in _list_errors(body)[:3]
    ]
    return ", ".join([f"status {status}", *texts])


def _list_errors(body: JSON) -> list[dict[str, Any]]:
    errors = body.get("errors") if isinstance(body, dict) else None
    return [entry for entry in errors or () if isinstance(entry, dict)]


class RecordingClient(UpstreamClient):
    """Sends requests like its base class, and records them with their answers."""

    def __init__(self, *parts: Any, exchanges: list[Exchange], is_probe: bool) -> None:
        super().__init__(*parts)
        self._exchanges, self._is_probe = exchanges, is_probe

    async def send(self, *request: Any, **options: Any) -> Reply:
        _environment, _credentials, method, target, body = request
        reply = await super().send(*request, **options)
        decoded = (_decode_object(body or b""), _decode_object(reply.body))
        self._exchanges.append(Exchange(method, target, *decoded, reply, self._is_probe))
        return reply


def _decode_object(data: Any) -> dict[str, Any]:
    try:
        value = json_codec.loads(bytes(data))
    except json_codec.JsonError:
        return {}
    return value if isinstance(value, dict) else {}


class Sandbox:
    """Sends legacy requests to the gateway, and probes directly to the service.

    ``exchanges`` are all calls of the service so far, also those that the gateway made.
    """

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials,
        *,
        exchanges: list[Exchange],
        probe_client: UpstreamClient,
        session: aiohttp.ClientSession,
    ) -> None:
        self._settings, self._credentials = settings, credentials
        self._probe_client, self._session = probe_client, session
        self.words, self.exchanges = settings.vocabulary, exchanges

    @property
    def base_url(self) -> str:
        sandbox = self._settings.environments.sandbox
        return sandbox.base_url if sandbox else ""

    async def send_legacy(self, method: str, path: str, body: JSON) -> tuple[int, JSON]:
        async with self._session.request(method, path, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def call_service(self, method: str, target: str, body: JSON = None) -> Exchange:
        data = None if body is None else json_codec.dumps(body)
        return await self._probe(self._probe_client, self._credentials, method, target, data)

    async def call_with_wrong_secret(self, target: str) -> Exchange:
        wrong = Credentials(self._credentials.access_key, secrets.token_hex(16))
        return await self._probe(self._probe_client, wrong, "GET", target)

    async def call_with_old_timestamp(self, target: str) -> Exchange:
        clock = ServiceClock(wall=lambda: time.time() - OLD_SECONDS)
        create_client = partial(RecordingClient, exchanges=self.exchanges, is_probe=True)
        async with open_upstream_client(
            self._settings, clock=clock, create_client=create_client
        ) as client:
            return await self._probe(client, self._credentials, "GET", target)

    async def _probe(self, client: UpstreamClient, *request: Any) -> Exchange:
        """Sends credentials, method, target and body; raises ServiceSilent."""
        credentials, method, target, body = (*request, None)[:4]
        options: dict[str, Any] = {"request_id": secrets.token_hex(8), "write": method != "GET"}
        try:
            await client.send(ENVIRONMENT, credentials, method, target, body, **options)
        except (Unreachable, Unknown) as failure:
            raise ServiceSilent(f"the sandbox does not answer: {failure}") from None
        return self.exchanges[-1]

    def measure_clock_offset(self) -> float:
        return self._probe_client.clock.offset(ENVIRONMENT)

    def find_signed_form(self) -> str | None:
        return self._probe_client.signed_target.find_form(ENVIRONMENT)
