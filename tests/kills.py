"""Kills a gateway at every step of a write, again and again, while a client retries.

A lane is a service, a database and a series of gateways on it. Each run kills the gateway that the previous run
left, so that every gateway inherits unfinished work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.config.settings import Settings
from gateway.simulator import Service
from tests.audit import audit
from tests.house import KEY, Got, import_lines, settings_for
from tests.judge import Heard, Judge, Misdeed, Stage, judging
from tests.nursery import Child, Nursery, ask, fast_folder, nursery
from tests.sockets import until
from tests.state import operations_by_state

DRAFTS = [
    ("PATCH", "/v1/batches/*"),
    ("DELETE", "/v1/batches/*"),
    ("PATCH", "/v1/batches/*/payments/*"),
    ("DELETE", "/v1/batches/*/payments/*"),
]
"""Without these calls an edit makes a draft, which must be created at the service later."""

SECONDS = 20
TRIES = 60


@dataclass(frozen=True, slots=True)
class Write:
    """A legacy request, and about how many upstream calls it makes."""

    method: str
    path: str
    body: Any
    calls: int
    starts: bool = False
    batch: str = ""
    """The description of its batch."""


@dataclass(slots=True)
class Lane:
    nursery: Nursery
    judge: Judge
    settings: Settings
    folder: Path
    session: aiohttp.ClientSession
    child: Child
    payee: str = ""
    kinds: Counter[str] = field(default_factory=Counter)
    """Runs by kind of write and by stage of the kill."""

    async def again(self) -> None:
        """Starts another gateway on the same database."""
        self.child = await self.nursery.start(self.settings, self.folder)

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Got | None:
        body = {} if body is None else {"json": body}
        return await ask(self.session, self.child, method, path, **body, **more)

    async def good(self, method: str, path: str, body: Any = None) -> Any:
        for _ in range(200):
            got = await self.ask(method, path, body)
            if got and got.status == 200:
                return got.body
            await asyncio.sleep(0.2)
        raise AssertionError((method, path, got))


@asynccontextmanager
async def lane(here: Nursery, seed: int) -> AsyncIterator[Lane]:
    folder = Path(tempfile.mkdtemp(prefix="kills", dir=fast_folder()))
    try:
        async with (
            judging(Service(seed=seed)) as judge,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session,
        ):
            judge.lacks += DRAFTS
            settings = settings_for(folder, judge.url, upstream={"timeout_seconds": 3})
            await import_lines(settings, [KEY])
            child = await here.start(settings, folder)
            made = Lane(here, judge, settings, folder, session, child)
            made.payee = await _payee(made)
            yield made
    finally:
        shutil.rmtree(folder)


async def _payee(here: Lane) -> str:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = {**_person("payee"), "address": address, "payout": _wallet("payee")}
    return str((await here.good("POST", "/v1/recipients", body))["recipient"]["id"])


def _person(mark: str) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": mark.title()}
    return {"type": "individual", **name, "email": f"{mark}@example.com"}


def _wallet(mark: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{mark}@wallet.example.com"}},
    }


# Requests


def _batch(here: Lane, mark: str) -> dict[str, Any]:
    payment = {"recipient": {"id": here.payee}, "sourceAmount": "10.00"}
    return {"sourceCurrency": "USD", "description": mark, "payments": [payment]}


async def _create_recipient(_here: Lane, mark: str) -> Write:
    return Write("POST", "/v1/recipients", {**_person(mark), "payout": _wallet(mark)}, 3)


async def _create_batch(here: Lane, mark: str) -> Write:
    return Write("POST", "/v1/batches", _batch(here, mark), 1, batch=mark)


async def _made(here: Lane, mark: str) -> str:
    return str((await here.good("POST", "/v1/batches", _batch(here, mark)))["batch"]["id"])


async def _start(here: Lane, mark: str) -> Write:
    path = f"/v1/batches/{await _made(here, mark)}/start-processing"
    return Write("POST", path, None, 2, starts=True, batch=mark)


async def _draft(here: Lane, mark: str) -> str:
    batch = await _made(here, mark)
    whole = (await here.good("GET", f"/v1/batches/{batch}"))["batch"]
    payment = whole["payments"]["payments"][0]["id"]
    await here.good("PATCH", f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "11.00"})
    return batch


async def _start_draft(here: Lane, mark: str) -> Write:
    path = f"/v1/batches/{await _draft(here, mark)}/start-processing"
    return Write("POST", path, None, 4, starts=True, batch=mark)


async def _make_real(here: Lane, mark: str) -> Write:
    path = f"/v1/batches/{await _draft(here, mark)}/generate-quote"
    return Write("POST", path, None, 4, batch=mark)


KINDS = {
    "a recipient with a payout": _create_recipient,
    "a batch": _create_batch,
    "a start": _start,
    "the start of a draft": _start_draft,
    "the quote of a draft": _make_real,
}


# Kills


@dataclass(slots=True)
class Blow:
    """Kills a gateway when its n-th call from now on reaches a stage."""

    child: Child
    number: int
    stage: Stage
    heard: int = -1
    struck: bool = False

    def __call__(self, heard: Heard, stage: Stage) -> None:
        if stage == "seen":
            self.heard += 1
        if not self.struck and self.heard == self.number and stage == self.stage:
            self.struck = True
            self.child.kill()


async def run(here: Lane, seed: int) -> None:
    """Kills once or twice, then retries until the client has its response."""
    dice = random.Random(seed)
    kind = dice.choice(list(KINDS))
    mark = f"run-{seed:06d}-end"
    write = await KINDS[kind](here, mark)
    here.kinds[kind] += 1
    headers = {"Idempotency-Key": mark} if dice.random() < 0.25 else {}
    first = await _struck(here, write, dice, headers)
    if first is None or first.status != 200:
        await _retried(here, write, dice, headers)
    _check(here, write, mark)


async def _struck(
    here: Lane, write: Write, dice: random.Random, headers: dict[str, str]
) -> Got | None:
    stages: list[Stage] = ["seen", "executed", "answered"]
    blow = Blow(here.child, dice.randrange(write.calls), dice.choice(stages))
    here.kinds[blow.stage] += 1
    if blow.stage == "seen" and dice.random() < 0.6:
        # The request is lost, or executed while the gateway looks for it.
        how = dice.choice(["reset before", "late"])
        misdeed = Misdeed(how, "*", "*", seconds=dice.uniform(0.05, 1.0), skips=blow.number)
        here.judge.misdeeds.append(misdeed)
    by_signal = dice.random() < 0.8
    if by_signal:
        here.judge.watchers.append(blow)
    asking = asyncio.ensure_future(here.ask(write.method, write.path, write.body, headers=headers))
    if not by_signal:
        await asyncio.sleep(dice.uniform(0, 0.06))
        here.child.kill()
    got = await asking
    here.judge.watchers.clear()
    here.judge.misdeeds.clear()
    if by_signal and not blow.struck:
        await asyncio.sleep(dice.uniform(0, 0.005))
    await here.child.ends()
    await here.again()
    return got


async def _retried(here: Lane, write: Write, dice: random.Random, headers: dict[str, str]) -> None:
    again = dice.choice([0.0, 0.0, 0.1, 0.5])
    second = dice.random() < 0.25
    for number in range(TRIES):
        await asyncio.sleep(again)
        asking = asyncio.ensure_future(
            here.ask(write.method, write.path, write.body, headers=headers)
        )
        if second and number in (1, 4):
            await asyncio.sleep(dice.uniform(0, 0.1))
            await here.child.ends()
        got = await asking
        if got is not None and got.status == 200:
            return
        if here.child.code.done():
            await here.again()
        assert got is None or got.status == 500, got.text
        if number >= 2:
            await until(lambda: here.judge.is_idle)
            here.child.put_ahead()  # past the age at which the service refuses a stamp
            again = 0.1
    raise AssertionError(f"no answer to {write}")


def _check(here: Lane, write: Write, mark: str) -> None:
    """Checks that the service did this write once and nothing else."""
    world, judge = here.judge.service.world(), here.judge
    assert all(times == 1 for times in judge.starts.values())
    if not write.batch:
        address = f"{mark}@example.com"
        there = [
            [account.fields["emailAddress"] for account in one.accounts]
            for one in world.recipients.values()
            if one.fields["email"] == address and not one.archived
        ]
        assert there == [[f"{mark}@wallet.example.com"]], there
        return
    made = [one for one in world.batches.values() if one.description == mark]
    assert len(made) == len(judge.done("POST", "/v1/batches", about=mark))
    # A draft supersedes the batch that it was before.
    assert len(made) == (1 if write.calls < 4 else 2), [one.id for one in made]
    assert [one.id in judge.starts for one in made] == [False] * (len(made) - 1) + [write.starts]


async def runs(seeds: range, lanes: int = 2) -> Counter[str]:
    """Runs many kills in concurrent lanes; returns counts by kind."""
    kinds: Counter[str] = Counter()
    async with nursery() as here:

        async def one(number: int) -> None:
            async with lane(here, seeds.start + number) as there:
                for seed in seeds[number::lanes]:
                    try:
                        await run(there, seed)
                    except (AssertionError, TimeoutError) as error:
                        raise AssertionError(f"seed {seed}: {error}") from error
                await _at_rest(there)
                kinds.update(there.kinds)

        async with asyncio.TaskGroup() as group:
            for number in range(lanes):
                group.create_task(one(number))
    return kinds


async def _at_rest(here: Lane) -> None:
    """Checks that nothing stays in doubt and that the journal agrees with the service."""
    here.child.put_ahead()
    for _ in range(100):
        states = await operations_by_state(here.settings)
        if not states["running"] and not states["unsettled"]:
            break
        await asyncio.sleep(0.2)
    assert not states["running"] + states["unsettled"], states
    await audit(here.settings, here.judge)
    with contextlib.suppress(ProcessLookupError):
        await here.child.ends()
