"""Scenarios of the clients, and what the service must have in the end."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.payouts import BANK
from tests.simulation import clients
from tests.simulation.assembly import ClientConnection, LegacyRequest, Response, SignedRequest
from tests.simulation.clients import ClientEnvironment
from tests.simulation.network import LegacyNetwork, Network
from tests.simulator import Batch


@dataclass
class Scenario:
    """The requests of one client, and their checks."""

    environment: ClientEnvironment
    network: Network
    legacy_network: LegacyNetwork
    tag: str
    payee: str
    random_source: random.Random
    duplicate_rate: float
    keys: float
    checks: list[Callable[[], str | None]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    added_amounts: set[str] = field(default_factory=set)

    async def request_concurrently(
        self, request: LegacyRequest, times: int = 1, gateway_index: int = 0
    ) -> list[Response | None]:
        """Sends a request from several clients at once; without an Idempotency-Key each counts as its own."""
        return list(
            await asyncio.gather(
                *(
                    clients.request_until_answered(
                        self.environment,
                        request,
                        random.Random(self.random_source.random()),
                        gateway_index,
                    )
                    for _ in range(times)
                )
            )
        )

    async def request_from_either_service(
        self, operation: str, ids: dict[str, str] | None = None, body: Any = None, times: int = 1
    ) -> list[Any]:
        """The responses of 200; a mode of the gateway's is drawn for each attempt."""
        key = self._choose_key(operation) if times == 1 else None
        request = LegacyRequest(operation, ids or {}, body, key, changes_modes=True)
        responses = await self.request_concurrently(request, times)
        statuses = [response and response.status for response in responses]
        self.history.append(f"{operation} {statuses}")
        return [response if response and response.status == 200 else None for response in responses]

    async def request_body(self, operation: str, body: Any = None, **ids: str) -> Any:
        """The response's body; None if it was refused or never came."""
        request = LegacyRequest(operation, ids, body, self._choose_key(operation))
        (response,) = await self.request_concurrently(request)
        self.history.append(f"{operation} {response and response.status}")
        return json.loads(response.data) if response and response.status == 200 else None

    def _choose_key(self, operation: str) -> str | None:
        is_post = operation.startswith(("create", "start", "generate"))
        has_one = is_post and self.random_source.random() < self.keys
        return f"{self.tag} {operation}" if has_one else None

    def list_problems(self) -> Iterator[str]:
        for check in self.checks:
            if problem := check():
                yield f"{self.tag} ({', '.join(self.history)}): {problem}"

    # At the service

    def list_accounts(self) -> list[list[str]]:
        """The accounts of each recipient with this scenario's address that is not deleted."""
        return [
            [account.fields["emailAddress"] for account in recipient.accounts]
            for recipient in self.network.service.find_or_create_tenant().recipients.values()
            if recipient.fields["email"] == f"{self.tag}@example.com" and not recipient.is_archived
        ]

    def list_batches(self) -> list[Batch]:
        batches = self.network.service.find_or_create_tenant().batches.values()
        return [batch for batch in batches if batch.description == self.tag]

    def list_starts(self) -> list[str]:
        batch_ids = {batch_start.id for batch_start in self.list_batches()}
        starts = (*self.network.list_starts(), *self.legacy_network.list_starts())
        return [id_ for id_ in starts if id_ in {*batch_ids, *self._list_legacy_ids()}]

    # At both services

    def list_ids_at_both(self) -> list[str]:
        """The ids of this scenario's recipients and batches that are not deleted."""
        recipients = self.network.service.find_or_create_tenant().recipients.values()
        return [
            *(
                recipient.id
                for recipient in recipients
                if recipient.fields["email"] == f"{self.tag}@example.com"
                and not recipient.is_archived
            ),
            *(batch.id for batch in self.list_batches()),
            *self._list_legacy_ids(),
        ]

    def _list_legacy_ids(self) -> list[str]:
        names = (f"{self.tag}@example.com", self.tag)
        return [
            id_
            for id_, body in self.legacy_network.bodies.items()
            if body.get("email", body.get("description")) in names
        ]


def build_person(tag: str, **fields: Any) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": tag.title()}
    return {"type": "individual", **name, "email": f"{tag}@example.com", **fields}


def build_wallet(tag: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{tag}@wallet.example.com"}},
    }


async def create_recipient(scenario: Scenario) -> None:
    """One client, or two that send the same request at once."""
    tag, rng = scenario.tag, scenario.random_source
    has_payout = rng.random() < 0.6
    body = build_person(tag, payout=build_wallet(tag)) if has_payout else build_person(tag)
    key = tag if rng.random() < scenario.keys else None
    duplicate_rate = 2 if rng.random() < scenario.duplicate_rate else 1
    request = LegacyRequest("create_recipient", {}, body, key)
    responses = await scenario.request_concurrently(request, duplicate_rate)
    scenario.history.append(
        f"create_recipient {[response and response.status for response in responses]}"
    )
    max_count = 1 if key else duplicate_rate
    account = [f"{tag}@wallet.example.com"] if has_payout else []

    def check() -> str | None:
        recipients = scenario.list_accounts()
        if any(end is None or end.status != 200 for end in responses):
            return f"never told: {[end and end.data for end in responses]}"
        reported_ids = {json.loads(end.data)["recipient"]["id"] for end in responses if end}
        # Either of two identical recipients is a right answer.
        if not len(reported_ids) <= len(recipients) <= max_count or any(
            recipient_accounts != account for recipient_accounts in recipients
        ):
            return f"told of {len(reported_ids)}, there is {recipients}"
        return None

    scenario.checks.append(check)


async def create_recipient_by_hasty_client(scenario: Scenario) -> None:
    """One client that sends copies of its request at once, and again until one is answered."""
    request = LegacyRequest("create_recipient", {}, build_person(scenario.tag), None)
    responses = await _send_copies_until_answered(scenario, request)

    def check() -> str | None:
        created_count = len(scenario.list_accounts())
        told_ids = {json.loads(response.data)["recipient"]["id"] for response in responses}
        # It gives up if a clock was so fast that the write is in doubt for longer.
        if created_count > 1 or len(told_ids) > created_count:
            return f"told of {told_ids}, there are {created_count}"
        return None

    scenario.checks.append(check)


async def change_payout_method(scenario: Scenario) -> None:
    """Sets payout methods of a recipient, often the same ones again; the last one is paid."""
    rng, tag = scenario.random_source, scenario.tag
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    methods = [build_wallet(f"{tag}-1"), build_wallet(f"{tag}-2"), BANK, _OTHER_BANK]
    for one, other in ((methods[1], BANK), (_OTHER_BANK, methods[0])):
        methods.append({**one, "accounts": {**one["accounts"], **other["accounts"]}})
    has_one = rng.random() < 0.7
    extra = {"payout": methods[0]} if has_one else {}
    created = await scenario.request_body(
        "create_recipient", build_person(tag, address=address, **extra)
    )
    if created is None:
        return
    ids = {"id": created["recipient"]["id"]}
    possible = [methods[0]] if has_one else [None]
    for _ in range(rng.choice((1, 2, 3, 4))):
        method = rng.choice(methods)
        operation = "update_payout_method" if has_one else "create_payout_method"
        request = LegacyRequest(operation, ids, method)
        times = 2 if rng.random() < scenario.duplicate_rate else 1
        responses = await scenario.request_concurrently(request, times)
        statuses = [response and response.status for response in responses]
        scenario.history.append(f"{operation} {method['primary']['method']} {statuses}")
        if 200 in statuses:
            possible, has_one = [method], True
        elif None in statuses:
            possible.append(method)
            has_one = True
    wanted = [
        method and _find_account_number(method["accounts"][method["primary"]["method"]])
        for method in possible
    ]

    def check() -> str | None:
        recipients = scenario.network.service.find_or_create_tenant().recipients
        accounts = recipients[ids["id"]].accounts
        paid = [_find_account_number(each.fields) for each in accounts if each.is_primary]
        return None if (paid or [None])[0] in wanted and len(paid) < 2 else f"{paid}, not {wanted}"

    scenario.checks.append(check)


_OTHER_BANK = {
    **BANK,
    "accounts": {"bank": {**BANK["accounts"]["bank"], "accountNum": "7654321"}},
}


def _find_account_number(account: dict[str, Any]) -> str:
    names = ("address", "emailAddress", "accountNum")
    return next(str(account[name]) for name in names if account.get(name))


async def pay_by_hasty_client(scenario: Scenario) -> None:
    """Creates a batch, may edit it, and sends copies of an added payment, then of its start."""
    rng, amounts = scenario.random_source, ["11.00"]
    body = {
        "sourceCurrency": "USD",
        "description": scenario.tag,
        "payments": [_build_payment(scenario, amount) for amount in amounts],
    }
    created_body = await scenario.request_body("create_batch", body)
    if created_body is None:
        scenario.checks.append(lambda: _check_at_most_one(scenario))
        return
    ids = {"id": created_body["batch"]["id"]}
    if rng.random() < 0.5:
        amounts = await _edit_batch(scenario, ids["id"], amounts)
    add = LegacyRequest("create_payment", ids, _build_payment(scenario, "6.00"), None)
    is_added = bool(await _send_copies_until_answered(scenario, add))
    start = LegacyRequest("start_batch", ids, None, None)
    await _send_copies_until_answered(scenario, start)

    def check() -> str | None:
        started_ids = scenario.list_starts()
        for batch in scenario.list_batches():
            paid = sorted(str(payment.amount) for payment in batch.payments.values())
            expected = sorted([*amounts, "6.00"] if is_added or paid.count("6.00") else amounts)
            if batch.id in started_ids and (len(started_ids) > 1 or paid != expected):
                return f"started {started_ids}, paid {paid} for {expected}"
        return None

    scenario.checks.append(check)


async def _send_copies_until_answered(scenario: Scenario, request: LegacyRequest) -> list[Response]:
    """Sends copies of a request at once, and again until one is answered with 200.

    No copy comes after a response was delivered, so that all of them are one request.
    """
    rng, responses = scenario.random_source, list[Response]()
    for _ in range(200):
        connections = [ClientConnection() for _ in range(rng.choice((1, 2, 3)))]
        for connection in connections:
            gateway = rng.choice(scenario.environment.gateways)
            if clients.is_up(gateway):
                gateway.accept(request, connection)
        attempts = (
            clients.wait_for_response(connection, scenario.environment, random.Random(rng.random()))
            for connection in connections
        )
        received = [response for response in await asyncio.gather(*attempts) if response]
        if responses := [response for response in received if response.status == 200]:
            break
        await asyncio.sleep(rng.choice((0.0, 0.1, 2.0)) + scenario.environment.is_undisturbed)
    scenario.history.append(f"{request.operation} {len(responses)}")
    return responses


async def create_recipient_while_modes_change(scenario: Scenario) -> None:
    """One client, or two that send the same request at once, which either service may answer."""
    duplicates = 2 if scenario.random_source.random() < scenario.duplicate_rate else 1
    responses = await scenario.request_from_either_service(
        "create_recipient", body=build_person(scenario.tag), times=duplicates
    )

    def check() -> str | None:
        created_ids = scenario.list_ids_at_both()
        told_ids = {json.loads(end.data)["recipient"]["id"] for end in responses if end}
        if len(created_ids) > duplicates or not told_ids <= set(created_ids):
            return f"told of {told_ids}, there is {created_ids}"
        return f"never told of {created_ids}" if None in responses else None

    scenario.checks.append(check)


async def start_batch_while_modes_change(scenario: Scenario) -> None:
    """Creates and starts a batch; the service that created it starts it, once."""
    payments = [_build_payment(scenario, "11.00")]
    body = {"sourceCurrency": "USD", "description": scenario.tag, "payments": payments}
    (created,) = await scenario.request_from_either_service("create_batch", body=body)
    responses: list[Response | None] = []
    if created:
        batch = json.loads(created.data)["batch"]["id"]
        duplicates = 2 if scenario.random_source.random() < scenario.duplicate_rate else 1
        responses = await scenario.request_from_either_service(
            "start_batch", {"id": batch}, times=duplicates
        )

    def check() -> str | None:
        created_ids, started_ids = scenario.list_ids_at_both(), scenario.list_starts()
        # At a service without lists a batch may be made again: only one of them is started.
        is_listed = scenario.network.service.options.inferred
        if (is_listed and len(created_ids) > 1) or len(started_ids) > bool(created):
            return f"{created_ids} were created, and {started_ids} started"
        if any(responses):
            return None if started_ids else f"not started: {created_ids}"
        # A gateway that was killed before it could record the batch does not know its service.
        return (
            None
            if _is_left_to_operator(scenario)
            else f"never told of {created_ids} and {started_ids}"
        )

    scenario.checks.append(check)


async def start_edited_batch(scenario: Scenario) -> None:
    """Creates a batch, may edit and quote it, and starts it."""
    rng, tag = scenario.random_source, scenario.tag
    amounts = [f"{rng.randrange(10, 99)}.00" for _ in range(rng.choice((1, 1, 2)))]
    payments = [_build_payment(scenario, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": tag, "payments": payments}
    created_body = await scenario.request_body("create_batch", body)
    if created_body is None:
        scenario.checks.append(lambda: _check_at_most_one(scenario))
        return
    batch = created_body["batch"]["id"]
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        amounts = await _edit_batch(scenario, batch, amounts)
    if rng.random() < 0.5:
        await scenario.request_body(rng.choice(("generate_quote", "read_batch_summary")), id=batch)
    start_responses = await _start_batch(scenario, batch)
    scenario.checks.append(lambda: _check_paid_once(scenario, amounts, start_responses))


def _build_payment(scenario: Scenario, amount: str) -> dict[str, Any]:
    return {"recipient": {"id": scenario.payee}, "sourceAmount": amount}


async def _edit_batch(scenario: Scenario, batch: str, amounts: list[str]) -> list[str]:
    """The amounts after the edit."""
    rng = scenario.random_source
    change = rng.choice(("add", "amount", "amount", "remove"))
    # An identical addition is a retry if it is not known that the first response was received.
    if change == "add" and "5.00" not in scenario.added_amounts:
        scenario.added_amounts.add("5.00")
        add_body = await scenario.request_body(
            "create_payment", _build_payment(scenario, "5.00"), id=batch
        )
        return [*amounts, "5.00"] if add_body else amounts
    batch_body = await scenario.request_body("read_batch", id=batch)
    if batch_body is None:
        return amounts
    payment = batch_body["batch"]["payments"]["payments"][0]
    other_amounts = [
        payment_body["sourceAmount"]
        for payment_body in batch_body["batch"]["payments"]["payments"][1:]
    ]
    ids = {"id": batch, "payment": payment["id"]}
    if change != "remove":
        amount = rng.choice(("7.00", "8.00"))
        changed_body = await scenario.request_body(
            "update_payment", {"sourceAmount": amount}, **ids
        )
        return [*other_amounts, amount] if changed_body else amounts
    if not other_amounts:
        return amounts
    changed_body = await scenario.request_body("delete_payment", **ids)
    return other_amounts if changed_body else amounts


async def _start_batch(scenario: Scenario, batch: str) -> list[Response | None]:
    duplicate_rate = 2 if scenario.random_source.random() < scenario.duplicate_rate else 1
    key = f"{scenario.tag} start" if scenario.random_source.random() < scenario.keys else None
    responses = await scenario.request_concurrently(
        LegacyRequest("start_batch", {"id": batch}, None, key), duplicate_rate
    )
    scenario.history.append(
        f"start_batch {[response and response.status for response in responses]}"
    )
    return responses


async def _create_contested_batch(scenario: Scenario) -> _ContestedBatch | None:
    """Creates a batch of three payments; None, with a check, if its client was not told of it."""
    amounts = ["11.00", "12.00", "13.00"]
    payments = [_build_payment(scenario, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": scenario.tag, "payments": payments}
    created_body = await scenario.request_body("create_batch", body)
    batch_body = created_body and await scenario.request_body(
        "read_batch", id=created_body["batch"]["id"]
    )
    if batch_body is None:
        scenario.checks.append(lambda: _check_at_most_one(scenario))
        return None
    ids = {
        payment["sourceAmount"]: payment["id"]
        for payment in batch_body["batch"]["payments"]["payments"]
    }
    return _ContestedBatch(scenario, created_body["batch"]["id"], ids, amounts)


async def start_contested_batch(scenario: Scenario) -> None:
    """Edits a batch, so that it may be a draft, then starts, quotes and edits it concurrently."""
    rng = scenario.random_source
    contested_batch = await _create_contested_batch(scenario)
    if contested_batch is None:
        return
    batch = contested_batch.batch
    await contested_batch.edit_repeatedly("amount")
    edits = rng.sample(("remove", "removes", "add", "again", "delete"), rng.choice((1, 2, 4)))
    other_operations = ("generate_quote", "read_batch_summary")
    await asyncio.gather(
        _start_batch(scenario, batch),
        contested_batch.edit_repeatedly(*edits),
        *(
            scenario.request_body(operation, id=batch)
            for operation in other_operations
            if rng.random() < 0.5
        ),
    )
    start_responses = await _start_batch(scenario, batch)
    scenario.checks.append(lambda: contested_batch.find_problem(start_responses))


async def start_batch_with_signed_changes(scenario: Scenario) -> None:
    """Edits a batch while a client with its own signature adds payments and may start it."""
    rng = scenario.random_source
    contested_batch = await _create_contested_batch(scenario)
    if contested_batch is None:
        return
    batch = contested_batch.batch
    edits = rng.sample(("amount", "removes", "add", "again"), rng.choice((1, 2)))
    signed_client = _SignedClient(scenario, batch)
    await asyncio.gather(
        contested_batch.edit_repeatedly(*edits), signed_client.change_repeatedly(rng.choice((1, 3)))
    )
    if rng.random() < 0.3:
        await signed_client.start()
    start_responses = await _start_batch(scenario, batch)

    def check() -> str | None:
        possible = signed_client.possible_amounts
        for lost_count in range(len(possible) + 1):
            for executed in itertools.combinations(possible, lost_count):
                amounts = [*contested_batch.amounts, *signed_client.added_amounts, *executed]
                expected = replace(contested_batch, amounts=amounts)
                if (problem := expected.find_problem(start_responses)) is None:
                    return None
        return f"{problem}, and perhaps {possible}"

    scenario.checks.append(check)


@dataclass
class _SignedClient:
    """A client that signs its own writes of a batch, and never repeats one."""

    scenario: Scenario
    batch: str
    added_amounts: list[str] = field(default_factory=list)
    possible_amounts: list[str] = field(default_factory=list)
    """Those of additions without a response that says whether they were made."""

    async def change_repeatedly(self, times: int) -> None:
        for number in range(times):
            amount = f"{31 + number}.00"
            body = {
                "recipient": {"id": self.scenario.payee},
                "amount": amount,
                "currency": "USD",
            }
            response = await self._send("payments", json.dumps(body).encode())
            if response and response.status == 200:
                self.added_amounts.append(amount)
            elif response is None or response.status >= 500 or response.status in (302, 408):
                self.possible_amounts.append(amount)

    async def start(self) -> None:
        await self._send("start-processing")

    async def _send(self, action: str, body: bytes = b"") -> Response | None:
        scenario = self.scenario
        await asyncio.sleep(scenario.random_source.choice((0.0, 0.02, 0.3)))
        target = f"/v1/batches/{self.batch}/{action}"
        request = SignedRequest("POST", target, scenario.network.service.clock(), body)
        gateways = scenario.environment.gateways
        response = await clients.request_once(
            scenario.random_source.choice(gateways),
            request,
            scenario.environment,
            scenario.random_source,
        )
        scenario.history.append(f"signed {action} {response and response.status}")
        return response


@dataclass
class _ContestedBatch:
    """A batch that several clients change at once, and their responses."""

    scenario: Scenario
    batch: str
    ids: dict[str, str]
    """Its payments' ids by their first amounts."""
    amounts: list[str]
    is_deleted: bool = False
    is_unanswered: bool = False

    async def edit_repeatedly(self, *edits: str) -> None:
        """Edits in sequence by one client, mostly at another gateway than the starts."""
        ids, batch = self.ids, {"id": self.batch}
        for edit in edits:
            await asyncio.sleep(self.scenario.random_source.choice((0.0, 0.01, 0.05, 0.3)))
            match edit:
                case "amount":
                    change = {"sourceAmount": "21.00"}
                    request = ("update_payment", {**batch, "payment": ids["11.00"]}, change)
                    await self._edit(*request, "11.00", "21.00")
                case "again":
                    change = {"update_payments": [{"id": ids["13.00"], "sourceAmount": "23.00"}]}
                    await self._edit("update_batch", batch, change, "13.00", "23.00")
                case "remove" if "12.00" in self.amounts:
                    payment_ids = {**batch, "payment": ids["12.00"]}
                    await self._edit("delete_payment", payment_ids, None, "12.00", "")
                case "removes" if "12.00" in self.amounts:
                    change = {"remove_payments": [{"id": ids["12.00"]}]}
                    await self._edit("update_batch", batch, change, "12.00", "")
                case "add":
                    added_payment = _build_payment(self.scenario, "14.00")
                    await self._edit("create_payment", batch, added_payment, "", "14.00")
                case "delete":
                    self.is_deleted = await self._is_accepted("delete_batch", batch, None)

    async def _edit(
        self, operation: str, ids: dict[str, str], body: Any, old_amount: str, new_amount: str
    ) -> None:
        if await self._is_accepted(operation, ids, body):
            self.amounts = [
                amount for amount in (*self.amounts, new_amount) if amount not in (old_amount, "")
            ]

    async def _is_accepted(self, operation: str, ids: dict[str, str], body: Any) -> bool:
        (response,) = await self.scenario.request_concurrently(
            LegacyRequest(operation, ids, body), gateway_index=1
        )
        self.scenario.history.append(f"{operation} {response and response.status}")
        self.is_unanswered = self.is_unanswered or response is None
        return response is not None and response.status == 200

    def find_problem(self, start_responses: list[Response | None]) -> str | None:
        """A contradiction between what was paid and the clients' responses."""
        scenario, started_ids = self.scenario, self.scenario.list_starts()
        if len(started_ids) > 1 or (self.is_deleted and started_ids):
            return f"{started_ids} were started"
        if self.is_unanswered or any(response is None for response in start_responses):
            return None if _is_left_to_operator(scenario) else "nobody was told"
        if not started_ids:
            return (
                None
                if self.is_deleted
                else f"not started: {[response and response.data for response in start_responses]}"
            )
        (batch,) = [
            candidate for candidate in scenario.list_batches() if candidate.id == started_ids[0]
        ]
        paid_amounts = sorted(str(candidate.amount) for candidate in batch.payments.values())
        return (
            None
            if paid_amounts == sorted(self.amounts)
            else f"paid {paid_amounts} for {sorted(self.amounts)}"
        )


def _is_left_to_operator(scenario: Scenario) -> bool:
    """Whether a batch was lost at a service without lists, and is left to the operator."""
    return scenario.environment.counts["left"] > 0


def _check_at_most_one(scenario: Scenario) -> str | None:
    batches = scenario.list_batches()
    if len(batches) > 1 or scenario.list_starts():
        return f"{len(batches)} batches"
    return None if _is_left_to_operator(scenario) else "nobody was told of the batch"


def _check_paid_once(
    scenario: Scenario, amounts: list[str], start_responses: list[Response | None]
) -> str | None:
    started_ids = scenario.list_starts()
    if len(started_ids) > 1:
        return f"{started_ids} were started"
    if any(response is None for response in start_responses):
        return None if _is_left_to_operator(scenario) else "nobody was told of the start"
    if (
        not any(response and response.status == 200 for response in start_responses)
        or not started_ids
    ):
        return f"not started: {[response and response.data for response in start_responses]}"
    (batch,) = [
        candidate for candidate in scenario.list_batches() if candidate.id == started_ids[0]
    ]
    paid_amounts = sorted(str(candidate.amount) for candidate in batch.payments.values())
    return None if paid_amounts == sorted(amounts) else f"paid {paid_amounts} for {sorted(amounts)}"


Kind = Callable[[Scenario], Awaitable[None]]
SCENARIOS: tuple[Kind, ...] = (
    create_recipient,
    start_edited_batch,
    start_edited_batch,
    start_contested_batch,
    create_recipient_while_modes_change,
    start_batch_while_modes_change,
    start_batch_with_signed_changes,
    create_recipient_by_hasty_client,
    pay_by_hasty_client,
    change_payout_method,
)
