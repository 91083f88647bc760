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
from tests.gateway_processes import (
    GatewayForker,
    GatewayProcess,
    find_memory_folder,
    open_forker,
    request_gateway,
)
from tests.journal_check import check_journal
from tests.recording_service import (
    PlannedFault,
    ReceivedRequest,
    RecordingService,
    Stage,
    open_recording_service,
)
from tests.running_gateway import KEY, GatewayResponse, build_settings, import_api_keys
from tests.sockets import wait_until
from tests.state import operations_by_state

UNSUPPORTED_EDITS = [
    ("PATCH", "/v1/batches/*"),
    ("DELETE", "/v1/batches/*"),
    ("PATCH", "/v1/batches/*/payments/*"),
    ("DELETE", "/v1/batches/*/payments/*"),
]
"""Without these calls an edit makes a draft, which must be created at the service later."""

SECONDS = 20
MAX_TRIES = 60


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A legacy request, and about how many upstream calls it makes."""

    method: str
    path: str
    body: Any
    calls: int
    starts: bool = False
    batch: str = ""
    """The description of its batch."""


@dataclass(slots=True)
class GatewaySeries:
    forker: GatewayForker
    judge: RecordingService
    settings: Settings
    folder: Path
    session: aiohttp.ClientSession
    gateway: GatewayProcess
    recipient_id: str = ""
    operation_counts: Counter[str] = field(default_factory=Counter)
    """Runs by kind of write and by stage of the kill."""

    async def restart_gateway(self) -> None:
        """Starts another gateway on the same database."""
        self.gateway = await self.forker.start(self.settings, self.folder)

    async def request(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> GatewayResponse | None:
        body = {} if body is None else {"json": body}
        return await request_gateway(self.session, self.gateway, method, path, **body, **more)

    async def request_successfully(self, method: str, path: str, body: Any = None) -> Any:
        for _ in range(200):
            got = await self.request(method, path, body)
            if got and got.status == 200:
                return got.body
            await asyncio.sleep(0.2)
        raise AssertionError((method, path, got))


@asynccontextmanager
async def open_series(series: GatewayForker, seed: int) -> AsyncIterator[GatewaySeries]:
    folder = Path(tempfile.mkdtemp(prefix="kills", dir=find_memory_folder()))
    try:
        async with (
            open_recording_service(Service(seed=seed)) as judge,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session,
        ):
            judge.lacks += UNSUPPORTED_EDITS
            settings = build_settings(folder, judge.url, upstream={"timeout_seconds": 3})
            await import_api_keys(settings, [KEY])
            child = await series.start(settings, folder)
            new_series = GatewaySeries(series, judge, settings, folder, session, child)
            new_series.recipient_id = await _create_payee(new_series)
            yield new_series
    finally:
        shutil.rmtree(folder)


async def _create_payee(series: GatewaySeries) -> str:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = {**_build_person("payee"), "address": address, "payout": _build_wallet("payee")}
    return str(
        (await series.request_successfully("POST", "/v1/recipients", body))["recipient"]["id"]
    )


def _build_person(mark: str) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": mark.title()}
    return {"type": "individual", **name, "email": f"{mark}@example.com"}


def _build_wallet(mark: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{mark}@wallet.example.com"}},
    }


# Requests


def _build_batch(series: GatewaySeries, mark: str) -> dict[str, Any]:
    payment = {"recipient": {"id": series.recipient_id}, "sourceAmount": "10.00"}
    return {"sourceCurrency": "USD", "description": mark, "payments": [payment]}


async def _plan_create_recipient(_here: GatewaySeries, mark: str) -> RequestPlan:
    return RequestPlan(
        "POST", "/v1/recipients", {**_build_person(mark), "payout": _build_wallet(mark)}, 3
    )


async def _plan_create_batch(series: GatewaySeries, mark: str) -> RequestPlan:
    return RequestPlan("POST", "/v1/batches", _build_batch(series, mark), 1, batch=mark)


async def _create_batch_now(series: GatewaySeries, mark: str) -> str:
    return str(
        (await series.request_successfully("POST", "/v1/batches", _build_batch(series, mark)))[
            "batch"
        ]["id"]
    )


async def _plan_start(series: GatewaySeries, mark: str) -> RequestPlan:
    path = f"/v1/batches/{await _create_batch_now(series, mark)}/start-processing"
    return RequestPlan("POST", path, None, 2, starts=True, batch=mark)


async def _plan_draft(series: GatewaySeries, mark: str) -> str:
    batch = await _create_batch_now(series, mark)
    whole = (await series.request_successfully("GET", f"/v1/batches/{batch}"))["batch"]
    payment = whole["payments"]["payments"][0]["id"]
    await series.request_successfully(
        "PATCH", f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "11.00"}
    )
    return batch


async def _plan_start_draft(series: GatewaySeries, mark: str) -> RequestPlan:
    path = f"/v1/batches/{await _plan_draft(series, mark)}/start-processing"
    return RequestPlan("POST", path, None, 4, starts=True, batch=mark)


async def _plan_draft_quote(series: GatewaySeries, mark: str) -> RequestPlan:
    path = f"/v1/batches/{await _plan_draft(series, mark)}/generate-quote"
    return RequestPlan("POST", path, None, 4, batch=mark)


KINDS = {
    "a recipient with a payout": _plan_create_recipient,
    "a batch": _plan_create_batch,
    "a start": _plan_start,
    "the start of a draft": _plan_start_draft,
    "the quote of a draft": _plan_draft_quote,
}


# Kills


@dataclass(slots=True)
class Kill:
    """Kills a gateway when its n-th call from now on reaches a stage."""

    child: GatewayProcess
    number: int
    stage: Stage
    heard: int = -1
    is_done: bool = False

    def __call__(self, request: ReceivedRequest, stage: Stage) -> None:
        if stage == "seen":
            self.heard += 1
        if not self.is_done and self.heard == self.number and stage == self.stage:
            self.is_done = True
            self.child.kill()


async def run_kill(series: GatewaySeries, seed: int) -> None:
    """Kills once or twice, then retries until the client has its response."""
    dice = random.Random(seed)
    kind = dice.choice(list(KINDS))
    mark = f"run-{seed:06d}-end"
    write = await KINDS[kind](series, mark)
    series.operation_counts[kind] += 1
    headers = {"Idempotency-Key": mark} if dice.random() < 0.25 else {}
    first = await _request_and_kill(series, write, dice, headers)
    if first is None or first.status != 200:
        await _retry_until_answered(series, write, dice, headers)
    _check_outcome(series, write, mark)


async def _request_and_kill(
    series: GatewaySeries, write: RequestPlan, dice: random.Random, headers: dict[str, str]
) -> GatewayResponse | None:
    stages: list[Stage] = ["seen", "executed", "answered"]
    blow = Kill(series.gateway, dice.randrange(write.calls), dice.choice(stages))
    series.operation_counts[blow.stage] += 1
    if blow.stage == "seen" and dice.random() < 0.6:
        # The request is lost, or executed while the gateway looks for it.
        behaviour = dice.choice(["reset before", "late"])
        misdeed = PlannedFault(
            behaviour, "*", "*", seconds=dice.uniform(0.05, 1.0), skips=blow.number
        )
        series.judge.faults.append(misdeed)
    by_signal = dice.random() < 0.8
    if by_signal:
        series.judge.watchers.append(blow)
    asking = asyncio.ensure_future(
        series.request(write.method, write.path, write.body, headers=headers)
    )
    if not by_signal:
        await asyncio.sleep(dice.uniform(0, 0.06))
        series.gateway.kill()
    got = await asking
    series.judge.watchers.clear()
    series.judge.faults.clear()
    if by_signal and not blow.is_done:
        await asyncio.sleep(dice.uniform(0, 0.005))
    await series.gateway.stop()
    await series.restart_gateway()
    return got


async def _retry_until_answered(
    series: GatewaySeries, write: RequestPlan, dice: random.Random, headers: dict[str, str]
) -> None:
    again = dice.choice([0.0, 0.0, 0.1, 0.5])
    second = dice.random() < 0.25
    for number in range(MAX_TRIES):
        await asyncio.sleep(again)
        asking = asyncio.ensure_future(
            series.request(write.method, write.path, write.body, headers=headers)
        )
        if second and number in (1, 4):
            await asyncio.sleep(dice.uniform(0, 0.1))
            await series.gateway.stop()
        got = await asking
        if series.gateway.code.done():
            # Also if the response was sent just before: the next run needs a gateway.
            await series.restart_gateway()
        if got is not None and got.status == 200:
            return
        assert got is None or got.status == 500, got.text
        if number >= 2:
            await wait_until(lambda: series.judge.is_idle)
            series.gateway.advance_clock()  # past the age at which the service refuses a stamp
            again = 0.1
    raise AssertionError(f"no answer to {write}")


def _check_outcome(series: GatewaySeries, write: RequestPlan, mark: str) -> None:
    """Checks that the service did this write once and nothing else."""
    world, judge = series.judge.service.find_or_create_tenant(), series.judge
    assert all(times == 1 for times in judge.list_starts.values())
    if not write.batch:
        address = f"{mark}@example.com"
        there = [
            [account.fields["emailAddress"] for account in one.accounts]
            for one in world.recipients.values()
            if one.fields["email"] == address and not one.is_archived
        ]
        assert there == [[f"{mark}@wallet.example.com"]], there
        return
    made = [one for one in world.batches.values() if one.description == mark]
    assert len(made) == len(judge.list_executed_writes("POST", "/v1/batches", about=mark))
    # A draft supersedes the batch that it was before.
    assert len(made) == (1 if write.calls < 4 else 2), [one.id for one in made]
    assert [one.id in judge.list_starts for one in made] == [False] * (len(made) - 1) + [
        write.starts
    ]


async def run_all(seeds: range, lanes: int = 2) -> Counter[str]:
    """Runs many kills in concurrent lanes; returns counts by kind."""
    kinds: Counter[str] = Counter()
    async with open_forker() as series:

        async def one(number: int) -> None:
            async with open_series(series, seeds.start + number) as there:
                for seed in seeds[number::lanes]:
                    try:
                        await run_kill(there, seed)
                    except (AssertionError, TimeoutError) as error:
                        raise AssertionError(f"seed {seed}: {error}") from error
                await _check_nothing_in_doubt(there)
                kinds.update(there.operation_counts)

        async with asyncio.TaskGroup() as group:
            for number in range(lanes):
                group.create_task(one(number))
    return kinds


async def _check_nothing_in_doubt(series: GatewaySeries) -> None:
    """Checks that nothing stays in doubt and that the journal agrees with the service."""
    series.gateway.advance_clock()
    for _ in range(100):
        states = await operations_by_state(series.settings)
        if not states["running"] and not states["unsettled"]:
            break
        await asyncio.sleep(0.2)
    assert not states["running"] + states["unsettled"], states
    await check_journal(series.settings, series.judge)
    with contextlib.suppress(ProcessLookupError):
        await series.gateway.stop()
