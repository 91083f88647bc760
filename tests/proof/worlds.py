"""Two services with equal seeds, one behind the gateway, that get the same requests."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.compare.answer import Answer
from gateway.compare.differences import Differ, Difference
from gateway.compare.endpoints import OutgoingRequest, Side
from gateway.compare.id_map import IdMap
from gateway.compare.operations import identify_operation
from gateway.compare.rules import Rules, build_rules
from gateway.simulator import (
    Fault,
    Service,
    ServiceOptions,
    Simulator,
    Vocabulary,
    accounts,
    batches,
    processing,
    start_simulator,
)
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.options import ServiceCredentials
from gateway.simulator.state import Account, Batch, Recipient
from tests.proof.known_differences import KNOWN_DIFFERENCES, LOGGED, KnownDifference
from tests.proof.openapi_check import list_shown_fields
from tests.proof.sequences import AT_THE_SERVICE, WHOLE_OBJECT, ProofRequest
from tests.running_gateway import KEY, build_settings, import_api_keys, open_gateway

TIMEOUT_SECONDS = 20
"""Generous, because a slow machine is no difference."""
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
        "worlds",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnexplainedDifference:
    """A difference that is not a known one."""

    asking: str
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
    answers = [f"  control   {control}", f"  candidate {candidate}"]
    return "\n".join(["", differences[0].asking, *map(str, differences), *answers])


@dataclass
class Tally:
    compared: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)


@dataclass
class ComparedServices:
    """Merchants whom nobody has asked for anything yet, in both."""

    control: str
    candidate: str
    keys: Iterator[ServiceCredentials]
    services: tuple[Service, Service]
    tally: Tally = field(default_factory=Tally)
    seconds: float = TIMEOUT_SECONDS
    shown_fields: set[str] | None = None
    """The fields of control's answers are put here, each after the operation's name."""
    recorded_responses: dict[int, list[Answer]] | None = None
    """Control's answers by sequence (its ``id``): of one that is here only candidate is asked.

    One that was played to its end is put here.
    """

    async def play(self, askings: list[ProofRequest]) -> list[UnexplainedDifference]:
        """Asks a sequence of a new merchant in both; what differs and is not named."""
        key = next(self.keys)
        for service in self.services:
            # One at a time: a service looks for a key among all that it has.
            service.credentials.clear()
            service.add_credentials(key)
        sides = [
            Side(name, url, key.api_key, timeout_seconds=self.seconds, concurrency=1)  # type: ignore[arg-type]
            for name, url in (("control", self.control), ("candidate", self.candidate))
        ]
        async with sides[0].open() as control, sides[1].open() as candidate:
            told = (
                None
                if self.recorded_responses is None
                else self.recorded_responses.get(id(askings))
            )
            visit = _SequenceRun(control, candidate, self.tally, self.shown_fields, told)
            for number, asking in enumerate(askings):
                if asking.method == AT_THE_SERVICE:
                    visit.apply_event(asking, self.services, key.merchant, number)
                elif differences := await visit.request(asking, number):
                    return differences
        if self.recorded_responses is not None:
            self.recorded_responses[id(askings)] = visit.answers
        return []


@dataclass
class _SequenceRun:
    control: Side
    candidate: Side
    tally: Tally
    shown: set[str] | None = None
    recorded: list[Answer] | None = None
    answers: list[Answer] = field(default_factory=list)
    pairing: IdMap = field(default_factory=IdMap)
    known: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    shown_last: dict[str, JsonObject] = field(default_factory=dict)
    """Each recipient as control showed it."""
    batch_of: dict[str, str] = field(default_factory=dict)

    async def request(self, asking: ProofRequest, number: int) -> list[UnexplainedDifference]:
        target, body = self._fill_ids(asking)
        own = await self._fetch_control(_build_sent_request(asking, target, body))
        other = await self.candidate.send(
            _build_sent_request(
                asking,
                self.pairing.translate_text(target, number),
                body and self.pairing.translate_text(body, number),
            )
        )
        operation = identify_operation(asking.method, target).name or asking.path
        rules = RULES if self.recorded is None else REPLAY_RULES
        differ = Differ(rules, self.pairing, operation=operation, step=number)
        differences = [*differ.compare_answers(own, other), *_list_too_long(other)]
        self._count(operation, own)
        if self.shown is not None:
            self.shown.update(list_shown_fields(operation, asking.method, own))
        self._learn_ids(own)
        return [
            UnexplainedDifference(
                f"{asking.method} {target} {body}", operation, difference, (own.body, other.body)
            )
            for difference in differences
            if not self._is_known_difference(operation, difference, own, other)
        ]

    async def _fetch_control(self, sent: OutgoingRequest) -> Answer:
        """Asked, or remembered: what it is asked depends on nothing but its own answers."""
        number = len(self.answers)
        answer = await self.control.send(sent) if self.recorded is None else self.recorded[number]
        self.answers.append(answer)
        return answer

    def apply_event(
        self, asking: ProofRequest, services: tuple[Service, Service], merchant: str, number: int
    ) -> None:
        """What nobody asks for by a request, and clients see all the same: to both services."""
        target, _ = self._fill_ids(asking)
        both = (target, self.pairing.translate_text(target, number))
        for service, spelled in zip(services, both, strict=True):
            if self.recorded is not None and service is services[0]:
                continue  # it happened when control was asked
            what, *words = spelled.removeprefix("/v1").split()
            place = 0 if service is services[0] else 1
            happening = HAPPENINGS.get(what) or SEPARATE_MERCHANT[what][place]
            happening(service, merchant, *words)

    def _fill_ids(self, asking: ProofRequest) -> tuple[str, str]:
        """Its target and its body, by the ids of control."""
        names = {
            kind: self._pick_id(kind, asking.picks[place])
            for kind, place in (("recipient", 0), ("batch", 1))
        }
        names["payment"] = self._pick_id("payment", asking.picks[0])
        if "{payment}" in asking.path or "{payment}" in json.dumps(asking.body):
            # Mostly a payment of its own batch.
            names["batch"] = self.batch_of.get(names["payment"], names["batch"])
        target, body = f"/v1{asking.path}", asking.body
        if body is not None and WHOLE_OBJECT in body:
            changed = {name: value for name, value in body.items() if name != WHOLE_OBJECT}
            body = {**self.shown_last.get(names["recipient"], {}), **changed}
        text = "" if body is None else json.dumps(body)
        for kind, id_ in names.items():
            target, text = (one.replace(f"{{{kind}}}", id_) for one in (target, text))
        return target, text

    def _pick_id(self, kind: str, pick: int) -> str:
        known = self.known[kind]
        return known[-1 - pick % len(known)] if known else UNKNOWN_IDS[kind]

    def _learn_ids(self, answer: Answer) -> None:
        if not answer.is_success:
            return
        body = json.loads(answer.body)
        for kind in ("recipient", "batch"):
            self._add_id(kind, body.get(kind))
        if isinstance(shown := body.get("recipient"), dict):
            self.shown_last[shown["id"]] = shown
        batch = body.get("batch") or {}
        listed = batch.get("payments") if isinstance(batch, dict) else None
        rows = listed.get("payments", []) if isinstance(listed, dict) else []
        for payment in [*rows, *([body["payment"]] if "payment" in body else [])]:
            self._add_id("payment", payment)
            if within := (payment.get("batch") or {}).get("id") or batch.get("id"):
                self.batch_of[payment["id"]] = within

    def _add_id(self, kind: str, made: Any) -> None:
        id_ = made.get("id") if isinstance(made, dict) else None
        if id_ and id_ not in self.known[kind]:
            self.known[kind].append(id_)

    def _count(self, operation: str, answer: Answer) -> None:
        self.tally.compared += 1
        self.tally.operations[operation] += 1
        self.tally.statuses[answer.status] += 1

    def _is_known_difference(
        self, operation: str, difference: Difference, own: Answer, other: Answer
    ) -> bool:
        for known in KNOWN_DIFFERENCES:
            if known.matches(operation, difference, own, other):
                self.tally.named[known.name] += 1
                return True
        return False


_LONG = re.compile(r'"id":"([RB]-[A-Za-z0-9]{17,})"')
"""Legacy interface, section 2: sixteen characters."""


def _list_too_long(answer: Answer) -> Iterator[Difference]:
    for id_ in _LONG.findall(answer.body.decode(errors="replace")):
        yield Difference("value", ("id",), ("id",), "id", "an id of 16 characters", id_)


def _in_service(service: Service, merchant: str, id_: str) -> str:
    """A stand-in's own id: legacy clients know some by another."""
    return service.find_or_create_tenant(merchant).service_ids_by_legacy_id.get(id_, id_)


def _known(service: Service, merchant: str, id_: str) -> Recipient | None:
    """None where it never came to be, or was deleted: nothing happens to it any more."""
    recipient = service.find_or_create_tenant(merchant).recipients.get(
        _in_service(service, merchant, id_)
    )
    return None if recipient is None or recipient.is_archived else recipient


def _status(service: Service, merchant: str, id_: str, word: str) -> None:
    if recipient := _known(service, merchant, id_):
        _move(recipient, word)


def _compliance(service: Service, merchant: str, id_: str, word: str) -> None:
    if recipient := _known(service, merchant, id_):
        service.set_compliance(recipient.id, word)


def _outcome(service: Service, merchant: str, id_: str, word: str) -> None:
    if found := _known(service, merchant, id_):
        service.set_outcome(found.id, word)


def _move(recipient: Recipient, word: str) -> None:
    """As somebody does in the dashboard: no word that the legacy interface remembers outlasts it."""
    recipient.status, recipient.legacy_status = word, None


def _account(service: Service, recipient: Recipient, kind: str, fields: tuple[str, ...]) -> None:
    """One more, as a client of the current interface adds it; not the primary one."""
    known = dict(one.split("=") for one in fields)
    number = len(recipient.accounts)
    kind = service.vocabulary.wallet if kind == "wallet" else kind
    accounts.attach_account(
        recipient, Account(f"A-ADDED{number}", kind, False, {"currency": "USD"} | known)
    )


def _paid(recipient: Recipient) -> None:
    """Payments of long ago, the newest first, one in each of the words that there are."""
    words = ("processed", "failed", "returned", "pending", "accepted")
    for number, word in enumerate(words):
        days = [f"2025-{month:02}-{20 - number:02}T10:00:00.000Z" for month in range(1, 10)]
        recipient.payments.append(
            {
                "id": f"P-LONGAGO{number}",
                "status": word,
                "sourceAmount": f"{number}.25",
                "targetAmount": f"{number}.75" if number else None,
                "exchangeRate": "1.5",
                "fxRate": "1.25",
                "fees": "0.30",
                "recipientFees": "0.10",
                "merchantFees": "0.20",
                "memo": f"n{number}",
                "sourceCurrency": "USD",
                "sourceCurrencyName": "US Dollar",
                "targetCurrency": "EUR",
                "targetCurrencyName": "Euro",
                "compliance": {"status": ("verified", "review")[number % 2], "checkedAt": days[0]},
                "processedAt": days[1],
                "createdAt": days[2],
                "updatedAt": days[3],
                "batch": {
                    "id": f"B-LONGAGO{number}",
                    "createdAt": days[4],
                    "updatedAt": days[5],
                    "sentAt": days[6],
                    "completedAt": days[7],
                },
            }
        )


def _finish(service: Service, merchant: str) -> None:
    """What is processed is over."""
    world = service.find_or_create_tenant(merchant)
    for batch in world.processing_batches:
        batch.sent_at = batch.sent_at and batch.sent_at - timedelta(hours=1)
    processing.finish_due_batches(world)


CODES = {
    "invalid_status": (406, 400), "invalid_field": (406, 400), "empty_field": (406, 400),
    "expired_quote": (406, 400), "invalid_api_key": (403, 401), "not_authorized": (403, 403),
    "not_found": (404, 404), "rate_limit_exceeded": (429, 429), "internal_server_error": (500, 500),
}  # fmt: skip
"""Sections 7: each code's status in the legacy interface, and in the current one."""


def _refuses(service: Service, code: str) -> None:
    """The next request is refused for a reason of the service's own, in each interface's status."""
    body = json.dumps({"ok": False, "errors": [{"code": code, "message": "No."}]}).encode()
    legacy, current = CODES[code]
    kind = {"Content-Type": "application/json; charset=utf-8", "Access-Control-Allow-Origin": "*"}
    service.faults[:] = [
        Fault("*", "*", legacy, body, kind, interface="legacy"),
        Fault("*", "*", current, body, kind, interface="current"),
    ]


def _expire(service: Service, merchant: str) -> None:
    """The time of every quote is over."""
    for batch in service.find_or_create_tenant(merchant).batches.values():
        batch.quote_expires_at = batch.quote_expires_at and batch.created_at


class _Closed(deque[JsonObject]):
    """A log that nothing more is written to."""

    def append(self, entry: JsonObject) -> None:
        pass


_HEADERS = {
    "X-Merchant-Key": "k1", "Proxy-Authorization": "a1", "X-Session-Token": "t1", "Cookie": "c1",
    "X-Client-Secret": "s1", "X-Signature": "s2", "X-Note": "Bearer n1",
}  # fmt: skip


def _log(recipient: Recipient, batch: str, headers: dict[str, str]) -> None:
    entry = {
        "ip": "203.0.113.9", "url": f"/v1/batches/{batch}", "method": "PATCH",
        "headers": {"Accept": "*/*", **headers}, "request": f'{{"id":"{batch}"}}',
        "response": f"of {batch}", "code": 200, "source": LOGGED.decode(), "testMode": True,
        "createdAt": "2025-01-01T10:00:00.000Z",
    }  # fmt: skip
    recipient.activities = _Closed([entry])


def _logged_here(service: Service, merchant: str, id_: str, batch: str) -> None:
    masked = dict.fromkeys(_HEADERS, "********")
    _log(service.require_recipient(_in_service(service, merchant, id_)), batch, masked)


def _logged_there(service: Service, merchant: str, id_: str, _batch: str) -> None:
    """A service that masks nothing, and calls the batch by its own id."""
    latest = [*service.find_or_create_tenant(merchant).batches][-1]
    _log(service.require_recipient(_in_service(service, merchant, id_)), latest, _HEADERS)


def _unarchived(service: Service, merchant: str, id_: str) -> None:
    _move(service.require_recipient(_in_service(service, merchant, id_)), "active")


SEPARATE_MERCHANT: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "logged": (_logged_here, _logged_there),
    "unarchived": (lambda *_: None, _unarchived),
}
"""What happens to the service behind the gateway in another way; to the legacy one first."""


def _gone(service: Service, merchant: str) -> None:
    """Deleted by somebody else: the batch that was made last."""
    world = service.find_or_create_tenant(merchant)
    batches.delete_batches(world, [[*world.batches.values()][-1]])


def _elsewhere(service: Service, merchant: str, count: str) -> None:
    """So many batches that somebody has made in the dashboard, long ago, one a minute."""
    world = service.find_or_create_tenant(merchant)
    for number in range(int(count)):
        made = datetime(2025, 1, 1, 10, tzinfo=UTC) + timedelta(minutes=number)
        batch = Batch("", "USD", f"n{number}", created_at=made, updated_at=made)
        batches.insert_batch(world, batch, [])


HAPPENINGS: dict[str, Callable[..., None]] = {
    "gone": _gone,
    "elsewhere": _elsewhere,
    "wallet": lambda service, merchant, currency, amount: service.set_wallet_balance(
        merchant, currency, amount
    ),
    "balance": lambda service, merchant, currency, amount: service.set_balance(
        merchant, currency, amount
    ),
    "compliance": _compliance,
    "outcome": _outcome,
    "status": _status,
    "people": lambda service, merchant, count, seed: service.seed_recipients(
        int(count), int(seed), merchant=merchant
    ),
    "account": lambda service, merchant, id_, kind, *fields: _account(
        service, service.require_recipient(_in_service(service, merchant, id_)), kind, fields
    ),
    "refuses": lambda service, _merchant, code: _refuses(service, code),
    "expire": _expire,
    "ssn": lambda service, merchant, id_, ssn: service.require_recipient(
        _in_service(service, merchant, id_)
    ).fields.update(ssn=ssn),
    "paid": lambda service, merchant, id_: _paid(
        service.require_recipient(_in_service(service, merchant, id_))
    ),
    "finish": _finish,
}
"""What can happen: by what it is called, with the words that follow."""


def _build_sent_request(asking: ProofRequest, target: str, body: str) -> OutgoingRequest:
    return OutgoingRequest(asking.method, target, body.encode() if body else None, key=asking.key)


SEPARATE_EVENTS: dict[str, Any] = {"processing_seconds": 3600, "quote_seconds": 3600}
OWN_WORDS = {
    "scheme": "prsign", "wallet": "payco", "avatar_url": "pictureUrl", "batch_currency": "moneyOf",
    "balance_path": "/v1/funds", "summary_path": "/v1/sums/{id}",
}  # fmt: skip
"""Of a service that calls by names of its own what the documents made neutral."""


@asynccontextmanager
async def open_services(
    words: Mapping[str, str], **switches: Any
) -> AsyncIterator[tuple[Simulator, Simulator]]:
    """One to be asked by its legacy face; and, with the words and switches, by its current one."""
    old, new = ServiceOptions(**SEPARATE_EVENTS), ServiceOptions(**SEPARATE_EVENTS, **switches)
    control = await start_simulator(
        service=Service(credentials=(), seed=1, options=old), legacy_port=0
    )
    try:
        service = Service(credentials=(), seed=1, options=new, vocabulary=Vocabulary(**words))
        candidate = await start_simulator(service=service)
        try:
            yield control, candidate
        finally:
            await candidate.stop()
    finally:
        await control.stop()


def build_sections(words: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a gateway in front of such a service."""
    return {
        # A mutant's answers are no reason to ask the service no more, nor is it asked a lot.
        "upstream": {"timeout_seconds": TIMEOUT_SECONDS, "breaker_failures": 0},
        "limits": {"requests_per_hour": 10**9},
        "vocabulary": {"current": words},
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
    folder: Path, merchants: int, words: Mapping[str, str] | None = None, **switches: Any
) -> AsyncIterator[ComparedServices]:
    """``words`` and ``switches`` are those of the service that the gateway stands in front of."""
    keys, words = build_keys(merchants), words or {}
    await import_keys(folder, keys)
    async with (
        open_services(words, **switches) as (old, new),
        open_gateway(folder, new.url, **build_sections(words)) as gateway,
    ):
        assert old.legacy is not None
        services = (old.service, new.service)
        yield ComparedServices(old.legacy.url, gateway.running.url, iter(keys), services)


async def import_keys(folder: Path, keys: list[ServiceCredentials]) -> None:
    """Into the state of a gateway that has its folder here."""
    for start_ in range(0, len(keys), 500):
        await import_api_keys(
            build_settings(folder, "http://127.0.0.1:1"),
            [
                {**KEY, "merchant": key.merchant, "api_key": key.api_key,
                 "access_key": key.access_key, "secret_key": key.secret_key}
                for key in keys[start_ : start_ + 500]
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
