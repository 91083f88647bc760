"""One run of a rehearsal: sends its requests, and collects what each of them shows."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.operator.rehearsal.cleanup import REFERENCE_PREFIX
from gateway.operator.rehearsal.sandbox import Exchange, Sandbox, format_refusal
from mappings import OPERATIONS
from mappings.current import ENDPOINTS
from mappings.effects import JSON

OPERATIONS_BY_NAME = {operation.name: operation for operation in OPERATIONS}
OPTIONAL_PATHS = tuple(
    f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.is_optional
)
MISSING_PATH_STATUSES = (404, 405, 501)


class Interrupted(Exception):
    """The operator has interrupted the rehearsal."""

    def __str__(self) -> str:
        return "interrupted; run the same command again to continue"


class StepFailed(Exception):
    """The rest of a chapter needs an object that could not be created."""


Seen = tuple[bool | None, str]


@dataclass(slots=True)
class Results:
    """What was seen so far. Only words, statuses and counts: no message and no data.

    ``operations`` maps a name to whether it worked, ``assumptions`` to whether it holds (None: it
    could not be tried), each with what was seen.
    """

    operations: dict[str, Seen] = field(default_factory=dict)
    assumptions: dict[str, Seen] = field(default_factory=dict)


def record_unless_failed(seen_by_name: dict[str, Seen], name: str, seen: Seen) -> None:
    """Records what was seen; a failure is not hidden by a later success."""
    if seen_by_name.get(name, (None, ""))[0] is not False:
        seen_by_name[name] = seen


@dataclass(slots=True)
class RehearsalRun:
    """The state of a run. ``pause_seconds`` lets the service's timestamps change."""

    sandbox: Sandbox
    may_start: bool
    is_interrupted: Callable[[], bool]
    pause_seconds: float = 1.1
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    results: Results = field(default_factory=Results)

    def build_reference(self, chapter: str) -> str:
        return f"{REFERENCE_PREFIX}{self.id}-{chapter}"

    async def send_legacy(
        self, name: str, path: str, body: JSON = None, *, expected: tuple[int, ...] = (200,)
    ) -> dict[str, Any]:
        """Sends a legacy request and records its result; returns an empty dict if it failed."""
        self._begin_step()
        method = OPERATIONS_BY_NAME[name].method
        status, answer = await self.sandbox.send_legacy(method, f"/v1{path}", body)
        is_object = isinstance(answer, dict) and answer.get("ok") is (status == 200)
        is_ok = status in expected and is_object
        # The first answer, which is a success; later ones may be an expected 404.
        if not is_ok or name not in self.results.operations:
            seen = (is_ok, format_refusal(status, answer))
            record_unless_failed(self.results.operations, name, seen)
        return answer if is_ok else {}

    def check_answer(self, name: str, *, is_as_sent: bool, what: str) -> None:
        """Records a failure of an operation that answered, but not with what was sent."""
        if not is_as_sent:
            seen = (False, f"the answer shows another {what}")
            record_unless_failed(self.results.operations, name, seen)

    async def probe(self, method: str, target: str, body: JSON = None) -> Exchange:
        """Calls the service itself."""
        self._begin_step()
        return await self.sandbox.call_service(method, target, body)

    def observe(self, name: str, holds: bool | None, seen: str, if_not: str = "") -> None:
        """Records whether an assumption holds, and what was seen if it does or does ``if_not``."""
        text = if_not if if_not and not holds else seen
        record_unless_failed(self.results.assumptions, name, (holds, text))

    def observe_accepted(self, name: str, exchange: Exchange | None) -> None:
        if exchange:
            self.observe(name, exchange.is_accepted, str(exchange))

    async def pause(self) -> None:
        await asyncio.sleep(self.pause_seconds)

    def _begin_step(self) -> None:
        if self.is_interrupted():
            raise Interrupted

    async def create_recipient(
        self, chapter: str, number: int, country: str = "US", **fields: JSON
    ) -> tuple[str, str]:
        """Creates a recipient through the gateway; returns its legacy and its current id."""
        reference = f"{self.build_reference(chapter)}-{number}"
        is_business = fields.get("type") == "business"
        names: dict[str, JSON] = {"firstName": "Rehearsal", "lastName": f"Number {number}"}
        body = {
            "type": "individual",
            **({"name": f"Rehearsal Company {number}"} if is_business else names),
            # A reserved domain (RFC 2606): the service sends mail to recipients.
            "email": f"{reference}@example.com",
            "referenceId": reference,
            "address": {
                "street1": "1 Main Street",
                "city": "Springfield",
                "country": country,
                "phone": "+12125550100",
            },
            **fields,
        }
        answer = await self.send_legacy("create_recipient", "/recipients", body)
        created = self.find_exchange("POST", "/recipients")
        current_id = (created.body.get("recipient") or {}).get("id") if created else None
        if not answer or not current_id:
            raise StepFailed
        shown = answer["recipient"].get("email")
        self.check_answer("create_recipient", is_as_sent=shown == body["email"], what="email")
        return answer["recipient"]["id"], current_id

    def build_wallet_payout(self, address: str = "wallet@example.com") -> dict[str, JSON]:
        word = self.sandbox.words.legacy.wallet
        return {
            "primary": {"method": word, "currency": "USD"},
            "accounts": {word: {"address": address}},
        }

    def list_exchanges(self, method: str, path: str) -> list[Exchange]:
        """Lists the gateway's calls of an endpoint (as in ``mappings.current``), oldest first."""
        words = self.sandbox.words.current
        paths = {"/balance": words.balance_path, "/batch/{id}/summary": words.summary_path}
        template = paths.get(path, f"/v1{path}").split("/")
        return [
            exchange
            for exchange in self.sandbox.exchanges
            if not exchange.is_probe
            and exchange.method == method
            and _is_path_of_template(exchange.path.split("/"), template)
        ]

    def find_exchange(self, method: str, path: str) -> Exchange | None:
        """Finds the gateway's latest call of an endpoint."""
        return next(reversed(self.list_exchanges(method, path)), None)

    def observe_paths(self) -> None:
        """Records which paths exist, by all calls that the gateway has made."""
        missing = []
        for endpoint in ENDPOINTS:
            name = f"{endpoint.method} {endpoint.path}"
            calls = self.list_exchanges(endpoint.method, endpoint.path)
            is_found = not calls or any(call.status not in MISSING_PATH_STATUSES for call in calls)
            if endpoint.is_optional and calls:
                self.observe(name, is_found, "it exists", f"status {calls[-1].status}")
            missing += [] if is_found or endpoint.is_optional else [name]
        is_complete = not missing
        self.observe(
            "documented paths", is_complete, "those called exist", f"missing: {', '.join(missing)}"
        )


def _is_path_of_template(parts: list[str], template: list[str]) -> bool:
    return len(parts) == len(template) and all(
        expected == part or expected.startswith("{")
        for part, expected in zip(parts, template, strict=True)
    )
