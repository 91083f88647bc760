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

from gateway.config.settings import Settings, State
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
from tests.simulator import Service
from tests.sockets import wait_until
from tests.state import count_operations_by_state

UNSUPPORTED_EDITS = [
    ("PATCH", "/v1/batches/*"),
    ("DELETE", "/v1/batches/*"),
    ("PATCH", "/v1/batches/*/payments/*"),
    ("DELETE", "/v1/batches/*/payments/*"),
]
"""Without these calls an edit creates a draft, which must be created at the service later."""

SECONDS = 20
MAX_TRIES = 60


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A legacy request, and about how many upstream calls it makes."""

    method: str
    path: str
    body: Any
    calls: int
    starts_batch: bool = False
    batch: str = ""
    """The description of its batch."""


@dataclass(slots=True)
class GatewaySeries:
    forker: GatewayForker
    recorder: RecordingService
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
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> GatewayResponse | None:
        body = {} if body is None else {"json": body}
        return await request_gateway(self.session, self.gateway, method, path, **body, **options)

    async def request_successfully(self, method: str, path: str, body: Any = None) -> Any:
        for _ in range(200):
            response = await self.request(method, path, body)
            if response and response.status == 200:
                return response.body
            await asyncio.sleep(0.2)
        raise AssertionError((method, path, response))


@asynccontextmanager
async def open_series(
    series: GatewayForker, seed: int, state: State | None
) -> AsyncIterator[GatewaySeries]:
    folder = Path(tempfile.mkdtemp(prefix="kills", dir=find_memory_folder()))
    try:
        async with (
            open_recording_service(Service(seed=seed)) as recorder,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session,
        ):
            recorder.missing_endpoints += UNSUPPORTED_EDITS
            sections: Any = {"upstream": {"timeout_seconds": 3}}
            if state is not None:
                sections["state"] = state.model_dump(mode="json", exclude_unset=True)
            settings = build_settings(folder, recorder.url, **sections)
            await import_api_keys(settings, [KEY])
            child = await series.start(settings, folder)
            new_series = GatewaySeries(series, recorder, settings, folder, session, child)
            new_series.recipient_id = await create_payee(new_series)
            yield new_series
    finally:
        shutil.rmtree(folder)


async def create_payee(series: GatewaySeries) -> str:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = {**_build_person("payee"), "address": address, "payout": _build_wallet("payee")}
    return str(
        (await series.request_successfully("POST", "/v1/recipients", body))["recipient"]["id"]
    )


def _build_person(run_tag: str) -> dict[str, Any]:
    name = {"firstName": "Ada", "lastName": run_tag.title()}
    return {"type": "individual", **name, "email": f"{run_tag}@example.com"}


def _build_wallet(run_tag: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{run_tag}@wallet.example.com"}},
    }


# Requests


def _build_batch(series: GatewaySeries, run_tag: str) -> dict[str, Any]:
    payment = {"recipient": {"id": series.recipient_id}, "sourceAmount": "10.00"}
    return {"sourceCurrency": "USD", "description": run_tag, "payments": [payment]}


async def _plan_create_recipient(_series: GatewaySeries, run_tag: str) -> RequestPlan:
    return RequestPlan(
        "POST", "/v1/recipients", {**_build_person(run_tag), "payout": _build_wallet(run_tag)}, 3
    )


async def _plan_create_batch(series: GatewaySeries, run_tag: str) -> RequestPlan:
    return RequestPlan("POST", "/v1/batches", _build_batch(series, run_tag), 1, batch=run_tag)


async def _create_batch_now(series: GatewaySeries, run_tag: str) -> str:
    return str(
        (await series.request_successfully("POST", "/v1/batches", _build_batch(series, run_tag)))[
            "batch"
        ]["id"]
    )


async def _plan_start(series: GatewaySeries, run_tag: str) -> RequestPlan:
    path = f"/v1/batches/{await _create_batch_now(series, run_tag)}/start-processing"
    return RequestPlan("POST", path, None, 2, starts_batch=True, batch=run_tag)


async def _plan_draft(series: GatewaySeries, run_tag: str) -> str:
    batch = await _create_batch_now(series, run_tag)
    batch_body = (await series.request_successfully("GET", f"/v1/batches/{batch}"))["batch"]
    payment = batch_body["payments"]["payments"][0]["id"]
    await series.request_successfully(
        "PATCH", f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "11.00"}
    )
    return batch


async def _plan_start_draft(series: GatewaySeries, run_tag: str) -> RequestPlan:
    path = f"/v1/batches/{await _plan_draft(series, run_tag)}/start-processing"
    return RequestPlan("POST", path, None, 4, starts_batch=True, batch=run_tag)


async def _plan_draft_quote(series: GatewaySeries, run_tag: str) -> RequestPlan:
    path = f"/v1/batches/{await _plan_draft(series, run_tag)}/generate-quote"
    return RequestPlan("POST", path, None, 4, batch=run_tag)


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
    call_index: int = -1
    is_done: bool = False

    def __call__(self, request: ReceivedRequest, stage: Stage) -> None:
        if stage == "seen":
            self.call_index += 1
        if not self.is_done and self.call_index == self.number and stage == self.stage:
            self.is_done = True
            self.child.kill()


async def run_kill(series: GatewaySeries, seed: int) -> None:
    """Kills once or twice, then retries until the client has its response."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    run_tag = f"run-{seed:06d}-end"
    write = await KINDS[kind](series, run_tag)
    series.operation_counts[kind] += 1
    headers = {"Idempotency-Key": run_tag} if rng.random() < 0.25 else {}
    response = await _request_and_kill(series, write, rng, headers)
    if response is None or response.status != 200:
        await _retry_until_answered(series, write, rng, headers)
    check_outcome(series, write, run_tag)


async def _request_and_kill(
    series: GatewaySeries, write: RequestPlan, rng: random.Random, headers: dict[str, str]
) -> GatewayResponse | None:
    stages: list[Stage] = ["seen", "executed", "answered"]
    kill = Kill(series.gateway, rng.randrange(write.calls), rng.choice(stages))
    series.operation_counts[kill.stage] += 1
    if kill.stage == "seen" and rng.random() < 0.6:
        # The request is lost, or executed while the gateway looks for it.
        behaviour = rng.choice(["reset before", "late"])
        fault = PlannedFault(
            behaviour, "*", "*", seconds=rng.uniform(0.05, 1.0), skip_count=kill.number
        )
        series.recorder.faults.append(fault)
    by_signal = rng.random() < 0.8
    if by_signal:
        series.recorder.watchers.append(kill)
    pending_response = asyncio.ensure_future(
        series.request(write.method, write.path, write.body, headers=headers)
    )
    if not by_signal:
        await asyncio.sleep(rng.uniform(0, 0.06))
        series.gateway.kill()
    response = await pending_response
    series.recorder.watchers.clear()
    series.recorder.faults.clear()
    if by_signal and not kill.is_done:
        await asyncio.sleep(rng.uniform(0, 0.005))
    await series.gateway.stop()
    await series.restart_gateway()
    return response


async def _retry_until_answered(
    series: GatewaySeries, write: RequestPlan, rng: random.Random, headers: dict[str, str]
) -> None:
    retry_delay = rng.choice([0.0, 0.0, 0.1, 0.5])
    kills_again = rng.random() < 0.25
    for number in range(MAX_TRIES):
        await asyncio.sleep(retry_delay)
        pending_response = asyncio.ensure_future(
            series.request(write.method, write.path, write.body, headers=headers)
        )
        if kills_again and number in (1, 4):
            await asyncio.sleep(rng.uniform(0, 0.1))
            await series.gateway.stop()
        response = await pending_response
        if series.gateway.code.done():
            # Also if the response was sent just before: the next run needs a gateway.
            await series.restart_gateway()
        if response is not None and response.status == 200:
            return
        assert response is None or response.status == 500, response.text
        if number >= 2:
            await wait_until(lambda: series.recorder.is_idle)
            series.gateway.advance_clock()  # past the age at which the service refuses a stamp
            retry_delay = 0.1
    raise AssertionError(f"no answer to {write}")


def check_outcome(series: GatewaySeries, write: RequestPlan, run_tag: str) -> None:
    """Checks that the service did this write once and nothing else."""
    tenant, recorder = series.recorder.service.find_or_create_tenant(), series.recorder
    assert all(times == 1 for times in recorder.list_starts.values())
    if not write.batch:
        address = f"{run_tag}@example.com"
        wallets = [
            [account.fields["emailAddress"] for account in stored.accounts]
            for stored in tenant.recipients.values()
            if stored.fields["email"] == address and not stored.is_archived
        ]
        assert wallets == [[f"{run_tag}@wallet.example.com"]], wallets
        return
    batches = [stored for stored in tenant.batches.values() if stored.description == run_tag]
    assert len(batches) == len(recorder.list_executed_writes("POST", "/v1/batches", text=run_tag))
    # A draft supersedes the batch that it was before.
    assert len(batches) == (1 if write.calls < 4 else 2), [stored.id for stored in batches]
    assert [stored.id in recorder.list_starts for stored in batches] == [False] * (
        len(batches) - 1
    ) + [write.starts_batch]


async def run_all(seeds: range, lane_count: int = 2, state: State | None = None) -> Counter[str]:
    """Runs many kills in concurrent lanes, each on a new SQLite file without ``state``; returns counts by kind."""
    kinds: Counter[str] = Counter()
    async with open_forker() as series:

        async def run_lane(number: int) -> None:
            async with open_series(series, seeds.start + number, state) as lane_series:
                for seed in seeds[number::lane_count]:
                    try:
                        await run_kill(lane_series, seed)
                    except (AssertionError, TimeoutError) as error:
                        raise AssertionError(f"seed {seed}: {error}") from error
                await check_nothing_in_doubt(lane_series)
                kinds.update(lane_series.operation_counts)

        async with asyncio.TaskGroup() as group:
            for number in range(lane_count):
                group.create_task(run_lane(number))
    return kinds


async def check_nothing_in_doubt(series: GatewaySeries) -> None:
    """Checks that nothing stays in doubt and that the journal agrees with the service."""
    series.gateway.advance_clock()
    for _ in range(100):
        states = await count_operations_by_state(series.settings)
        if not states["running"] and not states["unsettled"]:
            break
        await asyncio.sleep(0.2)
    assert not states["running"] + states["unsettled"], states
    await check_journal(series.settings, series.recorder)
    with contextlib.suppress(ProcessLookupError):
        await series.gateway.stop()
