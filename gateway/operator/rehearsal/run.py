"""One run of a rehearsal: takes its steps, and collects what each of them shows."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.operator.rehearsal.exchanges import (
    PROBE_ID,
    Exchange,
    RecordingClient,
    decode_object,
    format_answer,
)
from gateway.operator.rehearsal.scenario import Step
from gateway.payloads import json_codec
from gateway.upstream.client import open_upstream_client
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
RECALLED = " (in an earlier run, whose batches are still there)"
RECALLED_ROWS = {
    "create_batch": ("create_batch", "batch ids", "memo", "write answers"),
    "create_payment": ("create_payment", "added payments"),
    "unknown recipient": ("unknown recipient of a payment",),
}
"""The rows of the steps whose objects cannot be deleted at some services."""


class RehearsalStopped(Exception):
    """The operator has interrupted it, or the service is silent. The message is one line."""


Seen = tuple[bool | None, str]
"""Whether it is as expected (None: it could not be tried), and what was seen."""


@dataclass(slots=True)
class Results:
    """What was seen so far, by operation and by assumption. It contains no message and no data."""

    operations: dict[str, Seen] = field(default_factory=dict)
    assumptions: dict[str, Seen] = field(default_factory=dict)


@dataclass(slots=True)
class RehearsalRun:
    """The state of a run. ``session`` reaches the gateway, and ``client`` is the gateway's own.

    ``values`` are what the texts of the steps refer to. ``kept`` are ids of what earlier runs could
    not delete, by the name under which steps save them; it is used again, so that no run leaves
    more, and ``earlier`` has what was seen when it was created.
    """

    settings: Settings
    credentials: Credentials
    session: aiohttp.ClientSession
    client: RecordingClient
    may_start: bool = False
    is_interrupted: bool = False
    results: Results = field(default_factory=Results)
    earlier: Results = field(default_factory=Results)
    kept: dict[str, str] = field(default_factory=dict)
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

    @property
    def base_url(self) -> str:
        environments = self.settings.environments.map_configured_environments_by_name()
        return environments[ENVIRONMENT].base_url

    def reuse_batches(self, ids: Mapping[str, str], earlier: Results) -> None:
        """Takes over batches by reference, from the run that has seen the ``earlier`` results."""
        id_length = len(self.values["reference"])
        self.kept = {reference[id_length + 1 :]: id_ for reference, id_ in ids.items()}
        self.earlier = earlier
        # An added payment cannot be removed either.
        if "read" in self.kept and "create_payment" in earlier.operations:
            self.kept["added"] = ""

    async def take_step(self, step: Step) -> None:
        """Sends a request and records what it shows; raises RehearsalStopped."""
        if self.is_interrupted:
            raise RehearsalStopped("interrupted; run the same command again to continue")
        if step.saves.keys() & self.values.keys():
            return
        if kept := step.saves.keys() & self.kept.keys():
            self._recall(RECALLED_ROWS[step.name])
            for name in kept:
                self._save_ids(name, self.kept[name], self.kept[name])
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
                self._save_ids(name, str(id_), str(current_id))

    async def _send_legacy(
        self, step: Step, path: str, body: JSON, shows: Mapping[str, JSON]
    ) -> dict[str, Any]:
        """Returns the answer, empty if the operation failed."""
        method, rows = METHODS[step.name], self.results.operations
        async with self.session.request(method, f"/v1{path}", json=body) as response:
            status, answer = response.status, await response.json(content_type=None)
        is_object = isinstance(answer, dict) and answer.get("ok") is (status == 200)
        is_ok, seen = status in step.expected and is_object, format_answer(status, answer)
        if is_ok and (place := find_difference(answer, shows)):
            is_ok, seen = False, f"the answer shows another {place}"
        # The first answer, which is a success; later ones may be an expected 404. A failure stays.
        if step.name not in rows or (not is_ok and rows[step.name][0]):
            rows[step.name] = (is_ok, seen)
        return answer if is_object else {}

    async def _send_probe(self, step: Step, target: str, body: JSON) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            exchange = await self.call_service(step.method, target, body, step=step)
            self.probes[step.name] = exchange
            is_over = extract_batch(exchange.body).get("status") != "processing"
            if is_over or not step.is_repeated or time.monotonic() > deadline:
                return normalize(exchange.body) if exchange.is_accepted else {}
            await asyncio.sleep(1)

    async def call_service(
        self, method: str, target: str, body: JSON = None, *, step: Step | None = None
    ) -> Exchange:
        """Calls the service itself; raises RehearsalStopped if it does not answer."""
        credentials = self.credentials
        if step and step.is_forged:
            credentials = Credentials(credentials.access_key, "a wrong secret")
        data = None if body is None else json_codec.dumps(body)
        request = (ENVIRONMENT, credentials, method, target, data)
        options: dict[str, Any] = {"request_id": PROBE_ID, "write": method != "GET"}
        try:
            if step and (age := step.age_seconds):
                clock = ServiceClock(wall=lambda: time.time() - age)
                async with open_upstream_client(self.settings, clock=clock) as client:
                    reply = await client.send(*request, **options)
            else:
                reply = await self.client.send(*request, **options)
        except (Unreachable, Unknown) as failure:
            raise RehearsalStopped(f"the sandbox does not answer: {failure}") from None
        return Exchange(method, target, {}, decode_object(reply.body), reply, is_probe=True)

    def _recall(self, names: tuple[str, ...]) -> None:
        """Takes rows over from the earlier run that made what is not made again."""
        for rows, earlier in (
            (self.results.operations, self.earlier.operations),
            (self.results.assumptions, self.earlier.assumptions),
        ):
            for name in earlier.keys() & set(names):
                holds, seen = earlier[name]
                rows[name] = (holds, seen.removesuffix(RECALLED) + RECALLED)

    def _save_ids(self, name: str, legacy_id: str, current_id: str) -> None:
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
            value = dict(enumerate(value))
        value = (
            value.get(int(part) if part.isdigit() else part) if isinstance(value, dict) else None
        )
    return value


def find_difference(value: Any, expected: Any) -> str:
    """Finds the first place where a value lacks what is expected; empty if there is none."""
    pairs: Any = expected.items() if isinstance(expected, Mapping) else enumerate(expected)
    for key, part in pairs:
        found = find_value(value, str(key))
        is_leaf = not isinstance(part, Mapping | list)
        if found is None or (is_leaf and found != part):
            return str(key)
        if not is_leaf and (place := find_difference(found, part)):
            return f"{key}.{place}"
    return ""
