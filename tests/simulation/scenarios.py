"""Scenarios of the clients, and what the service must have in the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator import Batch
from tests.simulation import clients
from tests.simulation.assembly import LegacyRequest, Response
from tests.simulation.clients import ClientEnvironment
from tests.simulation.network import Network


@dataclass
class Scenario:
    """The requests of one client, and their checks."""

    environment: ClientEnvironment
    network: Network
    mark: str
    payee: str
    random_source: random.Random
    twins: float
    keys: float
    checks: list[Callable[[], str | None]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    async def request_concurrently(
        self, request: LegacyRequest, times: int = 1, at: int = 0
    ) -> list[Response | None]:
        """Sends a request from several clients at once; without an Idempotency-Key each counts as its own."""
        return list(
            await asyncio.gather(
                *(
                    clients.request_until_answered(
                        self.environment, request, random.Random(self.random_source.random()), at
                    )
                    for _ in range(times)
                )
            )
        )

    async def request_body(self, operation: str, body: Any = None, **ids: str) -> Any:
        """The response's body; None if it was refused or never came."""
        request = LegacyRequest(operation, ids, body, self._choose_key(operation))
        (response,) = await self.request_concurrently(request)
        self.history.append(f"{operation} {response and response.status}")
        return json.loads(response.data) if response and response.status == 200 else None

    def _choose_key(self, operation: str) -> str | None:
        is_post = operation.startswith(("create", "start", "generate"))
        has_one = is_post and self.random_source.random() < self.keys
        return f"{self.mark} {operation}" if has_one else None

    def list_problems(self) -> Iterator[str]:
        for check in self.checks:
            if problem := check():
                yield f"{self.mark} ({', '.join(self.history)}): {problem}"

    # At the service

    def list_accounts(self) -> list[list[str]]:
        """The accounts of each recipient with this scenario's address that is not deleted."""
        return [
            [account.fields["emailAddress"] for account in recipient.accounts]
            for recipient in self.network.service.find_or_create_tenant().recipients.values()
            if recipient.fields["email"] == f"{self.mark}@example.com" and not recipient.is_archived
        ]

    def list_batches(self) -> list[Batch]:
        batches = self.network.service.find_or_create_tenant().batches.values()
        return [batch for batch in batches if batch.description == self.mark]

    def list_starts(self) -> list[str]:
        ours = {start.id for start in self.list_batches()}
        return [
            start.batch_id for start in self.network.service.batch_starts if start.batch_id in ours
        ]


def build_person(mark: str, **more: Any) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": mark.title()}
    return {"type": "individual", **name, "email": f"{mark}@example.com", **more}


def build_wallet(mark: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{mark}@wallet.example.com"}},
    }


async def create_recipient(story: Scenario) -> None:
    """One client, or two that send the same request at once."""
    mark, dice = story.mark, story.random_source
    has_payout = dice.random() < 0.6
    body = build_person(mark, payout=build_wallet(mark)) if has_payout else build_person(mark)
    key = mark if dice.random() < story.keys else None
    twins = 2 if dice.random() < story.twins else 1
    request = LegacyRequest("create_recipient", {}, body, key)
    ends = await story.request_concurrently(request, twins)
    story.history.append(f"create_recipient {[end and end.status for end in ends]}")
    most = 1 if key else twins
    account = [f"{mark}@wallet.example.com"] if has_payout else []

    def check() -> str | None:
        recipients = story.list_accounts()
        if any(end is None or end.status != 200 for end in ends):
            return f"never told: {[end and end.data for end in ends]}"
        told_ids = {json.loads(end.data)["recipient"]["id"] for end in ends if end}
        # Either of two identical recipients is a right answer.
        if not len(told_ids) <= len(recipients) <= most or any(
            one != account for one in recipients
        ):
            return f"told of {len(told_ids)}, there is {recipients}"
        return None

    story.checks.append(check)


async def start_edited_batch(story: Scenario) -> None:
    """Creates a batch, may edit and quote it, and starts it."""
    dice, mark = story.random_source, story.mark
    amounts = [f"{dice.randrange(10, 99)}.00" for _ in range(dice.choice((1, 1, 2)))]
    payments = [_build_payment(story, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": mark, "payments": payments}
    created = await story.request_body("create_batch", body)
    if created is None:
        story.checks.append(lambda: _check_at_most_one(story))
        return
    batch = created["batch"]["id"]
    if dice.random() < 0.5:
        amounts = await _edit_batch(story, batch, amounts)
    if dice.random() < 0.5:
        await story.request_body(dice.choice(("generate_quote", "read_batch_summary")), id=batch)
    starts = await _start_batch(story, batch)
    story.checks.append(lambda: _check_paid_once(story, amounts, starts))


def _build_payment(story: Scenario, amount: str) -> dict[str, Any]:
    return {"recipient": {"id": story.payee}, "sourceAmount": amount}


async def _edit_batch(story: Scenario, batch: str, amounts: list[str]) -> list[str]:
    """The amounts after the edit."""
    change = story.random_source.choice(("add", "amount", "amount", "remove"))
    if change == "add":
        added = await story.request_body("create_payment", _build_payment(story, "5.00"), id=batch)
        return [*amounts, "5.00"] if added else amounts
    whole = await story.request_body("read_batch", id=batch)
    if whole is None:
        return amounts
    payment = whole["batch"]["payments"]["payments"][0]
    others = [one["sourceAmount"] for one in whole["batch"]["payments"]["payments"][1:]]
    ids = {"id": batch, "payment": payment["id"]}
    if change == "amount":
        done = await story.request_body("update_payment", {"sourceAmount": "7.00"}, **ids)
        return [*others, "7.00"] if done else amounts
    if not others:
        return amounts
    done = await story.request_body("delete_payment", **ids)
    return others if done else amounts


async def _start_batch(story: Scenario, batch: str) -> list[Response | None]:
    twins = 2 if story.random_source.random() < story.twins else 1
    key = f"{story.mark} start" if story.random_source.random() < story.keys else None
    ends = await story.request_concurrently(
        LegacyRequest("start_batch", {"id": batch}, None, key), twins
    )
    story.history.append(f"start_batch {[end and end.status for end in ends]}")
    return ends


async def start_contested_batch(story: Scenario) -> None:
    """Edits a batch, so that it may be a draft, then starts, quotes and edits it concurrently."""
    dice, mark = story.random_source, story.mark
    amounts = ["11.00", "12.00", "13.00"]
    payments = [_build_payment(story, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": mark, "payments": payments}
    created = await story.request_body("create_batch", body)
    whole = created and await story.request_body("read_batch", id=created["batch"]["id"])
    if whole is None:
        story.checks.append(lambda: _check_at_most_one(story))
        return
    batch = created["batch"]["id"]
    ids = {one["sourceAmount"]: one["id"] for one in whole["batch"]["payments"]["payments"]}
    contest = _ContestedBatch(story, batch, ids, amounts)
    await contest.edit_repeatedly("amount")
    ways = dice.sample(("remove", "removes", "add", "again", "delete"), dice.choice((1, 2, 4)))
    others = ("generate_quote", "read_batch_summary")
    await asyncio.gather(
        _start_batch(story, batch),
        contest.edit_repeatedly(*ways),
        *(story.request_body(other, id=batch) for other in others if dice.random() < 0.5),
    )
    ends = await _start_batch(story, batch)
    story.checks.append(lambda: contest.find_problem(ends))


@dataclass
class _ContestedBatch:
    """A batch that several clients change at once, and their responses."""

    story: Scenario
    batch: str
    ids: dict[str, str]
    """Its payments' ids by their first amounts."""
    amounts: list[str]
    is_deleted: bool = False
    is_unanswered: bool = False

    async def edit_repeatedly(self, *ways: str) -> None:
        """Edits in sequence by one client, mostly at another gateway than the starts."""
        ids, batch = self.ids, {"id": self.batch}
        for edit in ways:
            await asyncio.sleep(self.story.random_source.choice((0.0, 0.01, 0.05, 0.3)))
            match edit:
                case "amount":
                    change = {"sourceAmount": "21.00"}
                    request = ("update_payment", {**batch, "payment": ids["11.00"]}, change)
                    await self._edit(*request, "11.00", "21.00")
                case "again":
                    change = {"update_payments": [{"id": ids["13.00"], "sourceAmount": "23.00"}]}
                    await self._edit("update_batch", batch, change, "13.00", "23.00")
                case "remove" if "12.00" in self.amounts:
                    its = {**batch, "payment": ids["12.00"]}
                    await self._edit("delete_payment", its, None, "12.00", "")
                case "removes" if "12.00" in self.amounts:
                    change = {"remove_payments": [{"id": ids["12.00"]}]}
                    await self._edit("update_batch", batch, change, "12.00", "")
                case "add":
                    added = _build_payment(self.story, "14.00")
                    await self._edit("create_payment", batch, added, "", "14.00")
                case "delete":
                    self.is_deleted = await self._is_accepted("delete_batch", batch, None)

    async def _edit(
        self, operation: str, ids: dict[str, str], body: Any, before: str, after: str
    ) -> None:
        if await self._is_accepted(operation, ids, body):
            self.amounts = [one for one in (*self.amounts, after) if one not in (before, "")]

    async def _is_accepted(self, operation: str, ids: dict[str, str], body: Any) -> bool:
        (response,) = await self.story.request_concurrently(
            LegacyRequest(operation, ids, body), at=1
        )
        self.story.history.append(f"{operation} {response and response.status}")
        self.is_unanswered = self.is_unanswered or response is None
        return response is not None and response.status == 200

    def find_problem(self, ends: list[Response | None]) -> str | None:
        """A contradiction between what was paid and the clients' responses."""
        story, started = self.story, self.story.list_starts()
        if len(started) > 1 or (self.is_deleted and started):
            return f"{started} were started"
        if self.is_unanswered or any(end is None for end in ends):
            return None if _is_left_to_operator(story) else "nobody was told"
        if not started:
            return None if self.is_deleted else f"not started: {[end and end.data for end in ends]}"
        (batch,) = [one for one in story.list_batches() if one.id == started[0]]
        paid = sorted(str(one.amount) for one in batch.payments.values())
        return None if paid == sorted(self.amounts) else f"paid {paid} for {sorted(self.amounts)}"


def _is_left_to_operator(story: Scenario) -> bool:
    """Whether a batch was lost at a service without lists, and is left to the operator."""
    return story.environment.counts["left"] > 0


def _check_at_most_one(story: Scenario) -> str | None:
    batches = story.list_batches()
    if len(batches) > 1 or story.list_starts():
        return f"{len(batches)} batches"
    return None if _is_left_to_operator(story) else "nobody was told of the batch"


def _check_paid_once(
    story: Scenario, amounts: list[str], ends: list[Response | None]
) -> str | None:
    started = story.list_starts()
    if len(started) > 1:
        return f"{started} were started"
    if any(end is None for end in ends):
        return None if _is_left_to_operator(story) else "nobody was told of the start"
    if not any(end and end.status == 200 for end in ends) or not started:
        return f"not started: {[end and end.data for end in ends]}"
    (batch,) = [one for one in story.list_batches() if one.id == started[0]]
    paid = sorted(str(one.amount) for one in batch.payments.values())
    return None if paid == sorted(amounts) else f"paid {paid} for {sorted(amounts)}"


Kind = Callable[[Scenario], Awaitable[None]]
SCENARIOS: tuple[Kind, ...] = (
    create_recipient,
    start_edited_batch,
    start_edited_batch,
    start_contested_batch,
)
