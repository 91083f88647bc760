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
from tests.simulation.assembly import Asked, Response
from tests.simulation.clients import Town
from tests.simulation.network import Network


@dataclass
class Story:
    """The requests of one client, and their checks."""

    town: Town
    network: Network
    mark: str
    payee: str
    dice: random.Random
    twins: float
    keys: float
    checks: list[Callable[[], str | None]] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)

    async def asks(self, asked: Asked, times: int = 1, at: int = 0) -> list[Response | None]:
        """Sends a request from several clients at once; without an Idempotency-Key each counts as its own."""
        return list(
            await asyncio.gather(
                *(
                    clients.told(self.town, asked, random.Random(self.dice.random()), at)
                    for _ in range(times)
                )
            )
        )

    async def ask(self, operation: str, body: Any = None, **ids: str) -> Any:
        """The response's body; None if it was refused or never came."""
        asked = Asked(operation, ids, body, self._key(operation))
        (said,) = await self.asks(asked)
        self.wanted.append(f"{operation} {said and said.status}")
        return json.loads(said.data) if said and said.status == 200 else None

    def _key(self, operation: str) -> str | None:
        is_post = operation.startswith(("create", "start", "generate"))
        has_one = is_post and self.dice.random() < self.keys
        return f"{self.mark} {operation}" if has_one else None

    def wrong(self) -> Iterator[str]:
        for check in self.checks:
            if what := check():
                yield f"{self.mark} ({', '.join(self.wanted)}): {what}"

    # At the service

    def people(self) -> list[list[str]]:
        """The accounts of each recipient with this scenario's address that is not deleted."""
        return [
            [account.fields["emailAddress"] for account in one.accounts]
            for one in self.network.service.world().recipients.values()
            if one.fields["email"] == f"{self.mark}@example.com" and not one.archived
        ]

    def batches(self) -> list[Batch]:
        batches = self.network.service.world().batches.values()
        return [one for one in batches if one.description == self.mark]

    def starts(self) -> list[str]:
        ours = {one.id for one in self.batches()}
        return [one.batch_id for one in self.network.service.starts if one.batch_id in ours]


def person(mark: str, **more: Any) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": mark.title()}
    return {"type": "individual", **name, "email": f"{mark}@example.com", **more}


def wallet(mark: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{mark}@wallet.example.com"}},
    }


async def a_recipient(story: Story) -> None:
    """One client, or two that send the same request at once."""
    mark, dice = story.mark, story.dice
    has_payout = dice.random() < 0.6
    body = person(mark, payout=wallet(mark)) if has_payout else person(mark)
    key = mark if dice.random() < story.keys else None
    twins = 2 if dice.random() < story.twins else 1
    asked = Asked("create_recipient", {}, body, key)
    ends = await story.asks(asked, twins)
    story.wanted.append(f"create_recipient {[end and end.status for end in ends]}")
    most = 1 if key else twins
    account = [f"{mark}@wallet.example.com"] if has_payout else []

    def check() -> str | None:
        there = story.people()
        if any(end is None or end.status != 200 for end in ends):
            return f"never told: {[end and end.data for end in ends]}"
        told = {json.loads(end.data)["recipient"]["id"] for end in ends if end}
        # Either of two identical recipients is a right answer.
        if not len(told) <= len(there) <= most or any(one != account for one in there):
            return f"told of {len(told)}, there is {there}"
        return None

    story.checks.append(check)


async def a_batch(story: Story) -> None:
    """Creates a batch, may edit and quote it, and starts it."""
    dice, mark = story.dice, story.mark
    amounts = [f"{dice.randrange(10, 99)}.00" for _ in range(dice.choice((1, 1, 2)))]
    payments = [_payment(story, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": mark, "payments": payments}
    made = await story.ask("create_batch", body)
    if made is None:
        story.checks.append(lambda: _at_most_one(story))
        return
    batch = made["batch"]["id"]
    if dice.random() < 0.5:
        amounts = await _changed(story, batch, amounts)
    if dice.random() < 0.5:
        await story.ask(dice.choice(("generate_quote", "read_batch_summary")), id=batch)
    starts = await _started(story, batch)
    story.checks.append(lambda: _paid(story, amounts, starts))


def _payment(story: Story, amount: str) -> dict[str, Any]:
    return {"recipient": {"id": story.payee}, "sourceAmount": amount}


async def _changed(story: Story, batch: str, amounts: list[str]) -> list[str]:
    """The amounts after the edit."""
    how = story.dice.choice(("add", "amount", "amount", "remove"))
    if how == "add":
        added = await story.ask("create_payment", _payment(story, "5.00"), id=batch)
        return [*amounts, "5.00"] if added else amounts
    whole = await story.ask("read_batch", id=batch)
    if whole is None:
        return amounts
    payment = whole["batch"]["payments"]["payments"][0]
    others = [one["sourceAmount"] for one in whole["batch"]["payments"]["payments"][1:]]
    ids = {"id": batch, "payment": payment["id"]}
    if how == "amount":
        done = await story.ask("update_payment", {"sourceAmount": "7.00"}, **ids)
        return [*others, "7.00"] if done else amounts
    if not others:
        return amounts
    done = await story.ask("delete_payment", **ids)
    return others if done else amounts


async def _started(story: Story, batch: str) -> list[Response | None]:
    twins = 2 if story.dice.random() < story.twins else 1
    key = f"{story.mark} start" if story.dice.random() < story.keys else None
    ends = await story.asks(Asked("start_batch", {"id": batch}, None, key), twins)
    story.wanted.append(f"start_batch {[end and end.status for end in ends]}")
    return ends


async def a_contested_batch(story: Story) -> None:
    """Edits a batch, so that it may be a draft, then starts, quotes and edits it concurrently."""
    dice, mark = story.dice, story.mark
    amounts = ["11.00", "12.00", "13.00"]
    payments = [_payment(story, amount) for amount in amounts]
    body = {"sourceCurrency": "USD", "description": mark, "payments": payments}
    made = await story.ask("create_batch", body)
    whole = made and await story.ask("read_batch", id=made["batch"]["id"])
    if whole is None:
        story.checks.append(lambda: _at_most_one(story))
        return
    batch = made["batch"]["id"]
    ids = {one["sourceAmount"]: one["id"] for one in whole["batch"]["payments"]["payments"]}
    contest = _Contest(story, batch, ids, amounts)
    await contest.edits("amount")
    ways = dice.sample(("remove", "removes", "add", "again", "delete"), dice.choice((1, 2, 4)))
    others = ("generate_quote", "read_batch_summary")
    await asyncio.gather(
        _started(story, batch),
        contest.edits(*ways),
        *(story.ask(other, id=batch) for other in others if dice.random() < 0.5),
    )
    ends = await _started(story, batch)
    story.checks.append(lambda: contest.wrong(ends))


@dataclass
class _Contest:
    """A batch that several clients change at once, and their responses."""

    story: Story
    batch: str
    ids: dict[str, str]
    """Its payments' ids by their first amounts."""
    amounts: list[str]
    is_deleted: bool = False
    is_untold: bool = False

    async def edits(self, *ways: str) -> None:
        """Edits in sequence by one client, mostly at another gateway than the starts."""
        ids, batch = self.ids, {"id": self.batch}
        for way in ways:
            await asyncio.sleep(self.story.dice.choice((0.0, 0.01, 0.05, 0.3)))
            match way:
                case "amount":
                    change = {"sourceAmount": "21.00"}
                    asked = ("update_payment", {**batch, "payment": ids["11.00"]}, change)
                    await self._edit(*asked, "11.00", "21.00")
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
                    added = _payment(self.story, "14.00")
                    await self._edit("create_payment", batch, added, "", "14.00")
                case "delete":
                    self.is_deleted = await self._is_done("delete_batch", batch, None)

    async def _edit(
        self, operation: str, ids: dict[str, str], body: Any, before: str, after: str
    ) -> None:
        if await self._is_done(operation, ids, body):
            self.amounts = [one for one in (*self.amounts, after) if one not in (before, "")]

    async def _is_done(self, operation: str, ids: dict[str, str], body: Any) -> bool:
        (said,) = await self.story.asks(Asked(operation, ids, body), at=1)
        self.story.wanted.append(f"{operation} {said and said.status}")
        self.is_untold = self.is_untold or said is None
        return said is not None and said.status == 200

    def wrong(self, ends: list[Response | None]) -> str | None:
        """A contradiction between what was paid and the clients' responses."""
        story, started = self.story, self.story.starts()
        if len(started) > 1 or (self.is_deleted and started):
            return f"{started} were started"
        if self.is_untold or any(end is None for end in ends):
            return None if _is_untold(story) else "nobody was told"
        if not started:
            return None if self.is_deleted else f"not started: {[end and end.data for end in ends]}"
        (batch,) = [one for one in story.batches() if one.id == started[0]]
        paid = sorted(str(one.amount) for one in batch.payments.values())
        return None if paid == sorted(self.amounts) else f"paid {paid} for {sorted(self.amounts)}"


def _is_untold(story: Story) -> bool:
    """Whether a batch was lost at a service without lists, and is left to the operator."""
    return story.town.counts["left"] > 0


def _at_most_one(story: Story) -> str | None:
    there = story.batches()
    if len(there) > 1 or story.starts():
        return f"{len(there)} batches"
    return None if _is_untold(story) else "nobody was told of the batch"


def _paid(story: Story, amounts: list[str], ends: list[Response | None]) -> str | None:
    started = story.starts()
    if len(started) > 1:
        return f"{started} were started"
    if any(end is None for end in ends):
        return None if _is_untold(story) else "nobody was told of the start"
    if not any(end and end.status == 200 for end in ends) or not started:
        return f"not started: {[end and end.data for end in ends]}"
    (batch,) = [one for one in story.batches() if one.id == started[0]]
    paid = sorted(str(one.amount) for one in batch.payments.values())
    return None if paid == sorted(amounts) else f"paid {paid} for {sorted(amounts)}"


Kind = Callable[[Story], Awaitable[None]]
STORIES: tuple[Kind, ...] = (a_recipient, a_batch, a_batch, a_contested_batch)
