"""One run of a rehearsal: takes its steps, and collects what each of them shows."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import aiohttp

from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.operator.rehearsal.scenario import Step
from gateway.payloads import json_codec
from gateway.upstream.client import Reply, UpstreamClient, open_upstream_client
from gateway.upstream.clock import ServiceClock
from mappings import OPERATIONS
from mappings.effects import JSON
from mappings.failures import Unknown, Unreachable
from mappings.payloads import extract_batch, find_payments

ENVIRONMENT = "sandbox"
REFERENCE_PREFIX = "payout-gateway-rehearsal-"
"""Begins the referenceId of each recipient, and the description of each batch, of a rehearsal."""

METHODS = {operation.name: operation.method for operation in OPERATIONS}
WAIT_SECONDS = 30


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


class RehearsalStopped(Exception):
    """The operator has interrupted it, or the service is silent. The message is one line."""


Seen = tuple[bool | None, str]
"""Whether it is as expected (None: it could not be tried), and what was seen."""


@dataclass(slots=True)
class RehearsalRun:
    """The state of a run. ``session`` reaches the gateway, and ``client`` is the gateway's own.

    ``results`` has what was seen so far, by operation and by assumption, without messages and data.
    ``values`` are what the texts of the steps refer to.
    """

    settings: Settings
    credentials: Credentials
    session: aiohttp.ClientSession
    client: RecordingClient
    may_start: bool = False
    results: dict[str, Seen] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    probes: dict[str, Exchange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = self.settings.vocabulary
        self.values = {
            "reference": f"{REFERENCE_PREFIX}{secrets.token_hex(4)}",
            "tomorrow": f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%dT00:00:00Z}",
            "wallet": words.legacy.wallet,
            "service": words.legacy.service,
            "current_wallet": words.current.wallet,
            "balance_path": words.current.balance_path,
            "batch_currency": words.current.batch_currency,
        }

    async def take_step(self, step: Step) -> None:
        """Sends a request and records what it shows; raises RehearsalStopped."""
        if step.saves.keys() & self.values.keys():
            return
        try:
            target, body, shows = map(self._format, (step.target, step.body, step.shows))
        except KeyError:  # the step that saves the value has failed, and its row says so
            return
        await asyncio.sleep(step.delay_seconds)
        if step.method:
            answer = await self._send_probe(step, target, body)
        else:
            answer = await self._send_legacy(step, target, body, shows)
        for name, place in step.saves.items():
            if id_ := find_value(answer, place):
                bodies = (normalize(call.body) for call in reversed(self.client.exchanges))
                current_id = next(filter(None, (find_value(body, place) for body in bodies)), "")
                self.save_ids(name, str(id_), str(current_id))

    async def _send_legacy(
        self, step: Step, path: str, body: JSON, shows: Mapping[str, JSON]
    ) -> dict[str, Any]:
        """Returns the answer, empty if the operation failed."""
        async with self.session.request(METHODS[step.name], f"/v1{path}", json=body) as response:
            status, answer = response.status, await response.json(content_type=None)
        is_object = isinstance(answer, dict) and answer.get("ok") is (status == 200)
        is_ok, seen = status in step.expected and is_object, format_answer(status, answer)
        if is_ok and (place := find_difference(answer, shows)):
            is_ok, seen = False, f"the answer shows another {place}"
        # The first answer, which is a success; later ones may be an expected 404. A failure stays.
        if step.name not in self.results or (not is_ok and self.results[step.name][0]):
            self.results[step.name] = (is_ok, seen)
        return answer if is_object else {}

    async def _send_probe(self, step: Step, target: str, body: JSON) -> dict[str, Any]:
        """Returns the answer, empty if it is a refusal; waits for a batch that is processed."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            call = await self.call_service(
                step.method, target, body, secret=step.secret, age_seconds=step.age_seconds
            )
            self.probes[step.name] = call
            is_over = extract_batch(call.body).get("status") != "processing"
            if is_over or time.monotonic() > deadline:
                return normalize(call.body) if call.is_accepted else {}
            await asyncio.sleep(1)

    async def call_service(
        self,
        method: str,
        target: str,
        body: JSON = None,
        *,
        secret: str = "",
        age_seconds: float = 0,
    ) -> Exchange:
        """Calls the service itself; raises RehearsalStopped if it does not answer."""
        access_key, own_secret = self.credentials.access_key, self.credentials.secret_key
        data = None if body is None else json_codec.dumps(body)
        request = (ENVIRONMENT, Credentials(access_key, secret or own_secret), method, target, data)
        options: dict[str, Any] = {"request_id": PROBE_ID, "write": method != "GET"}
        try:
            if age_seconds:
                clock = ServiceClock(wall=lambda: time.time() - age_seconds)
                async with open_upstream_client(self.settings, clock=clock) as client:
                    reply = await client.send(*request, **options)
            else:
                reply = await self.client.send(*request, **options)
        except (Unreachable, Unknown) as failure:
            raise RehearsalStopped(f"the sandbox does not answer: {failure}") from None
        return build_exchange(method, target, data, PROBE_ID, reply)

    def save_ids(self, name: str, legacy_id: str, current_id: str) -> None:
        summary_path = self.settings.vocabulary.current.summary_path
        self.values[name], self.values[f"{name}_current"] = legacy_id, current_id
        self.values[f"{name}_summary"] = summary_path.format(id=current_id)

    def _format(self, value: Any) -> Any:
        """Replaces the names in braces; raises KeyError if one is not saved."""
        if isinstance(value, str):
            return value.format_map(self.values)
        if isinstance(value, Mapping):
            return {self._format(key): self._format(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [*map(self._format, value)]
        return value

    def list_calls(self, method: str, path: str) -> list[Exchange]:
        """Lists the gateway's calls of an endpoint (as in ``mappings.current``), oldest first."""
        words = self.settings.vocabulary.current
        paths = {"/balance": words.balance_path, "/batch/{id}/summary": words.summary_path}
        pattern = re.sub(r"\{\w+\}", "[^/]+", paths.get(path, f"/v1{path}"))
        return [
            call
            for call in self.client.exchanges
            if not call.is_probe and call.method == method and re.fullmatch(pattern, call.path)
        ]


def normalize(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an answer of the service with batch and payments where a legacy answer has them."""
    return {**body, "batch": extract_batch(body), "payments": find_payments(body) or []}


def find_value(value: Any, place: str) -> Any:
    """Finds a value by its place (``payments.0.id``); None if there is none."""
    for part in place.split("."):
        if isinstance(value, list):
            value = {str(index): entry for index, entry in enumerate(value)}
        value = value.get(part) if isinstance(value, dict) else None
    return value


def find_difference(value: Any, expected: Any, name: str = "") -> str:
    """Returns the name of the first value that is not as expected; empty if there is none."""
    if value is None or not isinstance(expected, Mapping | list):
        return "" if value == expected else name
    pairs: Any = expected.items() if isinstance(expected, Mapping) else enumerate(expected)
    names = (find_difference(find_value(value, str(k)), part, str(k)) for k, part in pairs)
    return next(filter(None, names), "")
