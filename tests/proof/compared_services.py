"""Two services with equal seeds, one behind the gateway, that get the same requests."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from gateway.compare.differences import Differ, Difference
from gateway.compare.endpoints import Answer, OutgoingRequest, Side
from gateway.compare.id_map import IdMap
from gateway.compare.requests import identify_operation
from gateway.compare.rules import Rules, build_rules
from gateway.simulator import accounts, batches
from gateway.simulator.state import (
    Account,
    Batch,
    Payment,
    PaymentTerms,
    Recipient,
    format_timestamp,
)
from gateway.simulator.validation import JsonObject
from tests.proof.known_differences import KNOWN_DIFFERENCES, LOGGED_SOURCE, KnownDifference
from tests.proof.openapi_check import list_shown_fields
from tests.proof.sequences import AT_THE_SERVICE, WHOLE_OBJECT, ProofRequest
from tests.running_gateway import KEY, build_settings, import_api_keys, open_gateway
from tests.simulator import (
    Fault,
    Service,
    ServiceCredentials,
    ServiceOptions,
    Simulator,
    Vocabulary,
    start_simulator,
)

TIMEOUT_SECONDS = 20
"""Generous, because a slow machine must not count as a difference."""
UNKNOWN_IDS = {"recipient": "R-NONE", "batch": "B-NONE", "payment": "P-NONE"}


RULES = Rules()
REPLAY_RULES = RULES.combine(
    build_rules(
        {
            "present": [
                {"path": "balances.*.accountNumber", "reason": "it was another merchant's"},
            ],
            "time": [
                {"path": f"**.{name}", "seconds": 86400, "reason": "control was asked long ago"}
                for name in (
                    "serverTime", "quoteExpiredAt", "createdAt", "updatedAt", "sentAt",
                    "completedAt", "processedAt", "checkedAt",
                )
            ]
        },
        "proof",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnexplainedDifference:
    """A difference that is not a known one."""

    request: str
    operation: str
    difference: Difference
    bodies: tuple[bytes, bytes]

    @property
    def kind(self) -> tuple[str, str, str]:
        """Differences of one kind most likely have one cause."""
        return self.operation, self.difference.kind, self.difference.normal_path

    def __str__(self) -> str:
        difference = self.difference
        return (
            f"  {self.operation} {difference.kind} {difference.normal_path}: {difference.control!r} is"
            f" {difference.candidate!r} {difference.note}"
        )


def format_differences(differences: list[UnexplainedDifference]) -> str:
    """Formats the differences of one response with the request and both responses."""
    if not differences:
        return ""
    control, candidate = (body.decode(errors="replace")[:1500] for body in differences[0].bodies)
    answer_lines = [f"  control   {control}", f"  candidate {candidate}"]
    return "\n".join(["", differences[0].request, *map(str, differences), *answer_lines])


@dataclass
class Tally:
    compared_count: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    known_counts: Counter[str] = field(default_factory=Counter)


@dataclass
class ComparedServices:
    """Two equal services, control and candidate, with merchants that have no data yet."""

    control: str
    candidate: str
    keys: Iterator[ServiceCredentials]
    services: tuple[Service, Service]
    tally: Tally = field(default_factory=Tally)
    seconds: float = TIMEOUT_SECONDS
    shown_fields: set[str] | None = None
    """Collects the fields of control's responses, each after the operation's name."""
    recorded_responses: dict[int, list[Answer]] | None = None
    """Control's responses by sequence (its ``id``); such a sequence is sent to candidate only.

    A sequence that ran to its end is added.
    """

    async def compare_sequence(self, requests: list[ProofRequest]) -> list[UnexplainedDifference]:
        """Plays a sequence as a new merchant in both; returns the differences that are not known ones."""
        key = next(self.keys)
        for service in self.services:
            # One at a time, because a service compares a key with all its credentials.
            service.credentials.clear()
            service.add_credentials(key)
        sides = [
            Side(name, url, key.api_key, timeout_seconds=self.seconds)  # type: ignore[arg-type]
            for name, url in (("control", self.control), ("candidate", self.candidate))
        ]
        async with sides[0].open() as control, sides[1].open() as candidate:
            recorded_answers = (
                None
                if self.recorded_responses is None
                else self.recorded_responses.get(id(requests))
            )
            run = _SequenceRun(control, candidate, self.tally, self.shown_fields, recorded_answers)
            for number, request in enumerate(requests):
                if request.method == AT_THE_SERVICE:
                    run.apply_event(request, self.services, key.merchant, number)
                elif differences := await run.request(request):
                    return differences
        if self.recorded_responses is not None:
            self.recorded_responses[id(requests)] = run.answers
        return []


@dataclass
class _SequenceRun:
    control: Side
    candidate: Side
    tally: Tally
    shown_fields: set[str] | None = None
    recorded_answers: list[Answer] | None = None
    answers: list[Answer] = field(default_factory=list)
    id_map: IdMap = field(default_factory=IdMap)
    known_ids: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    shown_last: dict[str, JsonObject] = field(default_factory=dict)
    """Each recipient as control showed it."""
    batch_of: dict[str, str] = field(default_factory=dict)

    async def request(self, request: ProofRequest) -> list[UnexplainedDifference]:
        target, body = self._fill_ids(request)
        control_answer = await self._fetch_control(_build_sent_request(request, target, body))
        candidate_answer = await self.candidate.send(
            _build_sent_request(
                request,
                self.id_map.replace_control_ids_in_text(target),
                body and self.id_map.replace_control_ids_in_text(body),
            )
        )
        operation = identify_operation(request.method, target).name or request.path
        rules = RULES if self.recorded_answers is None else REPLAY_RULES
        differ = Differ(rules, self.id_map, operation=operation)
        differences = [
            *differ.compare_answers(control_answer, candidate_answer),
            *_list_too_long(candidate_answer),
        ]
        self._count(operation, control_answer)
        if self.shown_fields is not None:
            self.shown_fields.update(list_shown_fields(operation, request.method, control_answer))
        self._learn_ids(control_answer)
        return [
            UnexplainedDifference(
                f"{request.method} {target} {body}",
                operation,
                difference,
                (control_answer.body, candidate_answer.body),
            )
            for difference in differences
            if not self._is_known_difference(
                operation, difference, control_answer, candidate_answer
            )
        ]

    async def _fetch_control(self, outgoing_request: OutgoingRequest) -> Answer:
        """Control's response, recorded or new; its requests depend on its own responses only."""
        number = len(self.answers)
        answer = (
            await self.control.send(outgoing_request)
            if self.recorded_answers is None
            else self.recorded_answers[number]
        )
        self.answers.append(answer)
        return answer

    def apply_event(
        self, request: ProofRequest, services: tuple[Service, Service], merchant: str, number: int
    ) -> None:
        """Applies an event that no request causes but clients see to both services."""
        target, _ = self._fill_ids(request)
        both = (target, self.id_map.replace_control_ids_in_text(target))
        for service, event_text in zip(services, both, strict=True):
            if self.recorded_answers is not None and service is services[0]:
                continue  # it was applied when control's responses were recorded
            event_name, *arguments = event_text.removeprefix("/v1").split()
            side_index = 0 if service is services[0] else 1
            handle_event = (
                EVENT_HANDLERS.get(event_name) or SEPARATE_MERCHANT[event_name][side_index]
            )
            handle_event(service, merchant, *arguments)

    def _fill_ids(self, request: ProofRequest) -> tuple[str, str]:
        """The target and the body of a request, with the ids of control."""
        names = {
            kind: self._pick_id(kind, request.object_indexes[position])
            for kind, position in (("recipient", 0), ("batch", 1))
        }
        names["payment"] = self._pick_id("payment", request.object_indexes[0])
        if "{payment}" in request.path or "{payment}" in json.dumps(request.body):
            # Mostly the batch of this payment.
            names["batch"] = self.batch_of.get(names["payment"], names["batch"])
        target, body = f"/v1{request.path}", request.body
        if body is not None and WHOLE_OBJECT in body:
            changed_fields = {name: value for name, value in body.items() if name != WHOLE_OBJECT}
            body = {**self.shown_last.get(names["recipient"], {}), **changed_fields}
        text = "" if body is None else json.dumps(body)
        for kind, id_ in names.items():
            target, text = (template.replace(f"{{{kind}}}", id_) for template in (target, text))
        return target, text

    def _pick_id(self, kind: str, pick: int) -> str:
        ids = self.known_ids[kind]
        return ids[-1 - pick % len(ids)] if ids else UNKNOWN_IDS[kind]

    def _learn_ids(self, answer: Answer) -> None:
        if not answer.is_success:
            return
        body = json.loads(answer.body)
        for kind in ("recipient", "batch"):
            self._add_id(kind, body.get(kind))
        if isinstance(recipient := body.get("recipient"), dict):
            self.shown_last[recipient["id"]] = recipient
        batch = body.get("batch") or {}
        payment_page = batch.get("payments") if isinstance(batch, dict) else None
        rows = payment_page.get("payments", []) if isinstance(payment_page, dict) else []
        for payment in [*rows, *([body["payment"]] if "payment" in body else [])]:
            self._add_id("payment", payment)
            if batch_id := (payment.get("batch") or {}).get("id") or batch.get("id"):
                self.batch_of[payment["id"]] = batch_id

    def _add_id(self, kind: str, created_object: Any) -> None:
        id_ = created_object.get("id") if isinstance(created_object, dict) else None
        if id_ and id_ not in self.known_ids[kind]:
            self.known_ids[kind].append(id_)

    def _count(self, operation: str, answer: Answer) -> None:
        self.tally.compared_count += 1
        self.tally.operations[operation] += 1
        self.tally.statuses[answer.status] += 1

    def _is_known_difference(
        self,
        operation: str,
        difference: Difference,
        control_answer: Answer,
        candidate_answer: Answer,
    ) -> bool:
        for known_difference in KNOWN_DIFFERENCES:
            if known_difference.matches(operation, difference, control_answer, candidate_answer):
                self.tally.known_counts[known_difference.name] += 1
                return True
        return False


_LONG_ID = re.compile(r'"id":"([RB]-[A-Za-z0-9]{17,})"')
"""Legacy interface, section 2: sixteen characters."""


def _list_too_long(answer: Answer) -> Iterator[Difference]:
    for id_ in _LONG_ID.findall(answer.body.decode(errors="replace")):
        yield Difference("value", ("id",), ("id",), "id", "an id of 16 characters", id_)


def _find_service_id(service: Service, merchant: str, id_: str) -> str:
    """The id inside the service for an id of the legacy interface."""
    return service.find_or_create_tenant(merchant).service_ids_by_legacy_id.get(id_, id_)


def _find_recipient(service: Service, merchant: str, id_: str) -> Recipient | None:
    """The recipient; None if it was never created or was deleted."""
    recipient = service.find_or_create_tenant(merchant).recipients.get(
        _find_service_id(service, merchant, id_)
    )
    return None if recipient is None or recipient.is_archived else recipient


def _set_status(service: Service, merchant: str, id_: str, word: str) -> None:
    if recipient := _find_recipient(service, merchant, id_):
        _move(recipient, word)


def _set_compliance(service: Service, merchant: str, id_: str, word: str) -> None:
    if recipient := _find_recipient(service, merchant, id_):
        now = service.find_or_create_tenant(merchant).now()
        recipient.compliance_status = word
        recipient.compliance_checked_at = None if word == "pending" else now
        recipient.updated_at = now


def _set_outcome(service: Service, merchant: str, id_: str, word: str) -> None:
    if recipient := _find_recipient(service, merchant, id_):
        recipient.outcome = word  # type: ignore[assignment]


def _move(recipient: Recipient, word: str) -> None:
    """Changes the status as the dashboard does, which also clears the status of the legacy interface."""
    recipient.status, recipient.legacy_status = word, None


def _add_account(
    service: Service, recipient: Recipient, kind: str, fields: tuple[str, ...]
) -> None:
    """Adds an account that is not primary, as a client of the current interface does."""
    account_fields = dict(entry.split("=") for entry in fields)
    number = len(recipient.accounts)
    kind = service.vocabulary.wallet if kind == "wallet" else kind
    accounts.attach_account(
        recipient, Account(f"A-ADDED{number}", kind, False, {"currency": "USD"} | account_fields)
    )


def _add_old_payments(service: Service, recipient: Recipient) -> None:
    """Adds old payments, the newest first, one for each status."""
    tenant = next(each for each in service.tenants.values() if recipient.id in each.recipients)
    statuses = ("processed", "failed", "returned", "pending", "accepted")
    for number, word in enumerate(statuses):
        days = [datetime(2025, month, 20 - number, 10, tzinfo=UTC) for month in range(1, 9)]
        batch = Batch(f"B-LONGAGO{number}", "USD", "", days[4], days[5], sent_at=days[6])
        batch.completed_at = days[7]
        amount, target_amount = Decimal(f"{number}.25"), Decimal(f"{number}.75")
        terms = PaymentTerms(
            None, amount, "USD", target_amount, "EUR", Decimal("1.5"), Decimal("0.30")
        )
        id_, memo, dates = f"P-LONGAGO{number}", f"n{number}", (days[2], days[3], word, days[1])
        payment = Payment(id_, batch, recipient, amount, "USD", memo, terms, *dates)
        checked_at = format_timestamp(days[0])
        payment.overrides = {
            "fxRate": "1.25",
            "recipientFees": "0.10",
            "merchantFees": "0.20",
            "compliance": {"status": ("verified", "review")[number % 2], "checkedAt": checked_at},
            **({} if number else {"targetAmount": None}),
        }
        tenant.payments[id_] = payment


def _finish_processing(service: Service, merchant: str) -> None:
    """Finishes all batches in processing."""
    tenant = service.find_or_create_tenant(merchant)
    for batch in tenant.processing_batches:
        batch.sent_at = batch.sent_at and batch.sent_at - timedelta(hours=1)
    batches.finish_due_batches(tenant)


CODES = {
    "invalid_status": (406, 400), "invalid_field": (406, 400), "empty_field": (406, 400),
    "expired_quote": (406, 400), "invalid_api_key": (403, 401), "not_authorized": (403, 403),
    "not_found": (404, 404), "rate_limit_exceeded": (429, 429), "internal_server_error": (500, 500),
}  # fmt: skip
"""Sections 7: each code's status in the legacy interface, and in the current one."""


def _refuse_next(service: Service, code: str) -> None:
    """Makes the service refuse the next request, with the status of each interface."""
    body = json.dumps({"ok": False, "errors": [{"code": code, "message": "No."}]}).encode()
    legacy, current = CODES[code]
    kind = {"Content-Type": "application/json; charset=utf-8", "Access-Control-Allow-Origin": "*"}
    service.faults[:] = [
        Fault("*", "*", legacy, body, kind, interface="legacy"),
        Fault("*", "*", current, body, kind, interface="current"),
    ]


def _expire_quotes(service: Service, merchant: str) -> None:
    """Expires every quote."""
    for batch in service.find_or_create_tenant(merchant).batches.values():
        batch.quote_expires_at = batch.quote_expires_at and batch.created_at


def _set_balance(service: Service, merchant: str, currency: str, amount: str) -> None:
    service.find_or_create_tenant(merchant).balances[currency] = Decimal(amount)


def _set_wallet_balance(service: Service, merchant: str, currency: str, amount: str) -> None:
    service.find_or_create_tenant(merchant).wallet_balance = (currency, Decimal(amount))


class _ClosedLog(deque[JsonObject]):
    """A log that ignores new entries."""

    def append(self, entry: JsonObject) -> None:
        pass


_HEADERS = {
    "X-Merchant-Key": "k1", "Proxy-Authorization": "a1", "X-Session-Token": "t1", "Cookie": "c1",
    "X-Client-Secret": "s1", "X-Signature": "s2", "X-Note": "Bearer n1",
}  # fmt: skip


def _replace_log(recipient: Recipient, batch: str, headers: dict[str, str]) -> None:
    entry = {
        "ip": "203.0.113.9", "url": f"/v1/batches/{batch}", "method": "PATCH",
        "headers": {"Accept": "*/*", **headers}, "request": f'{{"id":"{batch}"}}',
        "response": f"of {batch}", "code": 200, "source": LOGGED_SOURCE.decode(), "testMode": True,
        "createdAt": "2025-01-01T10:00:00.000Z",
    }  # fmt: skip
    recipient.activities = _ClosedLog([entry])


def _log_masked(service: Service, merchant: str, id_: str, batch: str) -> None:
    masked_headers = dict.fromkeys(_HEADERS, "********")
    _replace_log(
        service.require_recipient(_find_service_id(service, merchant, id_)), batch, masked_headers
    )


def _log_unmasked(service: Service, merchant: str, id_: str, _batch: str) -> None:
    """The log of a service that masks nothing and uses its own id of the batch."""
    latest = [*service.find_or_create_tenant(merchant).batches][-1]
    _replace_log(
        service.require_recipient(_find_service_id(service, merchant, id_)), latest, _HEADERS
    )


def _unarchive(service: Service, merchant: str, id_: str) -> None:
    _move(service.require_recipient(_find_service_id(service, merchant, id_)), "active")


SEPARATE_MERCHANT: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "logged": (_log_masked, _log_unmasked),
    "unarchived": (lambda *_: None, _unarchive),
}
"""Events that differ between the services: the handlers for control and for candidate."""


def _delete_last_batch(service: Service, merchant: str) -> None:
    """Deletes the batch that was created last, as another client does."""
    tenant = service.find_or_create_tenant(merchant)
    batches.delete_batches(tenant, [[*tenant.batches.values()][-1]])


def _create_old_batches(service: Service, merchant: str, count: str) -> None:
    """Creates batches as in the dashboard, long ago and one a minute."""
    tenant = service.find_or_create_tenant(merchant)
    for number in range(int(count)):
        created_at = datetime(2025, 1, 1, 10, tzinfo=UTC) + timedelta(minutes=number)
        batch = Batch("", "USD", f"n{number}", created_at=created_at, updated_at=created_at)
        batches.insert_batch(tenant, batch, [])


EVENT_HANDLERS: dict[str, Callable[..., None]] = {
    "gone": _delete_last_batch,
    "elsewhere": _create_old_batches,
    "wallet": _set_wallet_balance,
    "balance": _set_balance,
    "compliance": _set_compliance,
    "outcome": _set_outcome,
    "status": _set_status,
    "people": lambda service, merchant, count, seed: service.seed_recipients(
        int(count), int(seed), merchant=merchant
    ),
    "account": lambda service, merchant, id_, kind, *fields: _add_account(
        service, service.require_recipient(_find_service_id(service, merchant, id_)), kind, fields
    ),
    "refuses": lambda service, _merchant, code: _refuse_next(service, code),
    "expire": _expire_quotes,
    "ssn": lambda service, merchant, id_, ssn: service.require_recipient(
        _find_service_id(service, merchant, id_)
    ).fields.update(ssn=ssn),
    "paid": lambda service, merchant, id_: _add_old_payments(
        service, service.require_recipient(_find_service_id(service, merchant, id_))
    ),
    "finish": _finish_processing,
}
"""Handlers of events by name; the words after the name are their arguments."""


def _build_sent_request(request: ProofRequest, target: str, body: str) -> OutgoingRequest:
    return OutgoingRequest(request.method, target, body.encode() if body else None, key=request.key)


SEPARATE_EVENTS: dict[str, Any] = {"processing_seconds": 3600, "quote_seconds": 3600}
OWN_WORDS = {
    "scheme": "prsign", "wallet": "payco", "avatar_url": "pictureUrl", "batch_currency": "moneyOf",
    "balance_path": "/v1/funds", "summary_path": "/v1/sums/{id}",
}  # fmt: skip
"""The vocabulary of a service with its own names for what the documents call neutrally."""


@asynccontextmanager
async def open_services(
    vocabulary: Mapping[str, str], **service_options: Any
) -> AsyncIterator[tuple[Simulator, Simulator]]:
    """Runs control, used by its legacy interface, and candidate, with a vocabulary and options of its own."""
    legacy_options, current_options = (
        ServiceOptions(**SEPARATE_EVENTS),
        ServiceOptions(**SEPARATE_EVENTS, **service_options),
    )
    control = await start_simulator(
        service=Service(credentials=(), seed=1, options=legacy_options), legacy_port=0
    )
    try:
        service = Service(
            credentials=(), seed=1, options=current_options, vocabulary=Vocabulary(**vocabulary)
        )
        candidate = await start_simulator(service=service)
        try:
            yield control, candidate
        finally:
            await candidate.stop()
    finally:
        await control.stop()


def build_sections(vocabulary: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a gateway in front of such a service."""
    return {
        # Responses to mutants must not open the circuit breaker or exceed the rate limit.
        "upstream": {"timeout_seconds": TIMEOUT_SECONDS, "breaker_failures": 0},
        "limits": {"requests_per_hour": 10**9},
        "vocabulary": {"current": vocabulary},
    }


def build_keys(count: int) -> list[ServiceCredentials]:
    return [
        ServiceCredentials(
            f"ACCESS{n:05}", f"secret-{n}", f"merchant{n}", api_key=f"an-api-key-{n:05}"
        )
        for n in range(count)
    ]


@asynccontextmanager
async def open_compared_services(
    folder: Path,
    merchants: int,
    vocabulary: Mapping[str, str] | None = None,
    **service_options: Any,
) -> AsyncIterator[ComparedServices]:
    """``vocabulary`` and ``service_options`` belong to the service behind the gateway."""
    keys, vocabulary = build_keys(merchants), vocabulary or {}
    await import_keys(folder, keys)
    async with (
        open_services(vocabulary, **service_options) as (legacy_simulator, current_simulator),
        open_gateway(folder, current_simulator.url, **build_sections(vocabulary)) as gateway,
    ):
        services = (legacy_simulator.service, current_simulator.service)
        yield ComparedServices(
            legacy_simulator.legacy_url, gateway.running.url, iter(keys), services
        )


async def import_keys(folder: Path, keys: list[ServiceCredentials]) -> None:
    """Imports keys into the state of a gateway with this folder."""
    for start_index in range(0, len(keys), 500):
        await import_api_keys(
            build_settings(folder, "http://127.0.0.1:1"),
            [
                {**KEY, "merchant": key.merchant, "api_key": key.api_key,
                 "access_key": key.access_key, "secret_key": key.secret_key}
                for key in keys[start_index : start_index + 500]
            ],
        )  # fmt: skip


__all__ = [
    "ComparedServices",
    "KnownDifference",
    "Tally",
    "UnexplainedDifference",
    "format_differences",
    "open_compared_services",
]
