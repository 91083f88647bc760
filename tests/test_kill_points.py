"""A gateway killed between any two steps of a forwarded or signed write neither repeats nor loses it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from tests.gateway.storage import conftest
from tests.gateway_processes import (
    GatewayForker,
    GatewayProcess,
    find_memory_folder,
    open_forker,
    request_gateway,
)
from tests.operator_commands import run_command
from tests.payouts import WALLET
from tests.running_gateway import KEY, GatewayResponse, build_settings, import_api_keys
from tests.signed_requests import SigningClient
from tests.simulator import DEMO_CREDENTIALS, Batch, Service, ServiceOptions, start_simulator
from tests.sockets import exchange
from tests.state import count_operations_by_state, open_state

database, postgres = conftest.database, conftest.postgres

FORWARDED_AMOUNT = Decimal("7.00")
RETRIES = ("identical", "other body", "other interface")
RETRIES_OF_A_POINT = min(len(RETRIES), int(os.environ.get("KILLS", "200")) // 200)
"""Each point is tried with one of the retries, or, as by `make soak`, with more of them, and then with each
write on PostgreSQL too."""

POSTGRESQL_STEP = 3
"""Without more retries only every third point is tried on PostgreSQL, where each takes seconds."""

MAX_POINTS, MAX_TRIES = 40, 100


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """``action`` is below the batch's path; without one the write creates a batch."""

    action: str
    is_signed: bool
    has_body: bool = True

    def __str__(self) -> str:
        return f"{'signed' if self.is_signed else 'forwarded'} {self.action or '/batches'}"

    @property
    def mode(self) -> str:
        return "translate" if self.is_signed else "forward"


WRITES = (
    PlannedWrite("", is_signed=False),
    PlannedWrite("/payments", is_signed=False),
    PlannedWrite("/start-processing", is_signed=False, has_body=False),
    PlannedWrite("/payments", is_signed=True),
    PlannedWrite("/start-processing", is_signed=True, has_body=False),
)


@dataclass(slots=True)
class Stand:
    """A service with both interfaces, and a series of gateways on one database."""

    forker: GatewayForker
    service: Service
    settings: Settings
    folder: Path
    session: aiohttp.ClientSession
    is_forwarding: bool
    gateway: GatewayProcess = field(init=False)
    recipient: str = ""
    settled: set[str] = field(default_factory=set)
    point_step: int = 1
    run_count: int = 0
    """Makes the bodies of each run different from those of others, of which they would be retries."""

    @property
    def armed_file(self) -> Path:
        return self.folder / "armed"

    async def start_gateway(self, kill_point: int) -> None:
        self.gateway = await self.forker.start(self.settings, self.folder, kill_point=kill_point)

    async def send(
        self, method: str, path: str, body: Any = None, *, is_signed: bool = False
    ) -> GatewayResponse | None:
        """The response; None if there was none."""
        if not is_signed:
            options: dict[str, Any] = {"headers": {"X-API-Key": DEMO_CREDENTIALS.api_key}}
            options |= {} if body is None else {"json": body}
            return await request_gateway(self.session, self.gateway, method, path, **options)
        data = b"" if body is None else json.dumps(body).encode()
        headers = ["Content-Type: application/json"] if data else []
        stamp = int(time.time())
        request = SigningClient().build_request(method, path, data, *headers, stamp=stamp)
        try:
            response = await exchange(self.gateway.port, request)
        except (ConnectionError, EOFError):
            return None
        return response and GatewayResponse(
            response.status, response.headers, response.body.decode(), response.parse_json
        )

    async def send_until_answered(
        self, method: str, path: str, body: Any = None, *, is_signed: bool = False
    ) -> GatewayResponse:
        """Sends a request until its response is definite."""
        for _ in range(MAX_TRIES):
            response = await self.send(method, path, body, is_signed=is_signed)
            if response is not None and response.status != 500:
                return response
            self.gateway.advance_clock()
            await self.settle_forwarded_writes()
            await asyncio.sleep(0.1)
        raise AssertionError((method, path, response))

    async def settle_forwarded_writes(self) -> None:
        """Settles forwarded writes in doubt, as an operator does who looks at the legacy service."""
        if not self.is_forwarding:
            return
        async with open_state(self.settings) as state:
            await state.age_writes(60)
        arguments = ("writes", "unsettled", "--json")
        listing = json.loads((await run_command(self.folder, *arguments)).stdout)
        for write in listing["writes"]:
            if write["operation"].startswith("forwarded ") and write["write"] not in self.settled:
                verdict = self._find_verdict(write["operation"].removeprefix("forwarded "))
                command = ("writes", "settle", write["write"], *verdict, "--yes")
                result = await run_command(self.folder, *command, code=None)
                # The gateway may be looking whether it can end it; then the next round repeats it.
                assert result.exit_code == 0 or "is in progress" in result.output, result.output
                if result.exit_code == 0:
                    self.settled.add(write["write"])

    def _find_verdict(self, operation: str) -> list[str]:
        batch = self.newest_batch
        if operation == "start_batch" and batch.id in self.list_started_batches():
            return ["--happened"]
        if operation == "create_payment":
            made = [id_ for id_, each in batch.payments.items() if each.amount == FORWARDED_AMOUNT]
            return ["--made", *made] if made else ["--did-not-happen"]
        for batch in self.service.find_or_create_tenant().batches.values():
            if operation == "create_batch" and batch.description == f"the write {self.run_count}":
                return ["--made", batch.id]
        return ["--did-not-happen"]

    @property
    def newest_batch(self) -> Batch:
        return list(self.service.find_or_create_tenant().batches.values())[-1]

    def list_started_batches(self) -> list[str]:
        return [batch_start.batch_id for batch_start in self.service.batch_starts]


@asynccontextmanager
async def open_stand(
    forker: GatewayForker, mode: str, state: State | None = None
) -> AsyncIterator[Stand]:
    folder = Path(tempfile.mkdtemp(prefix="kills", dir=find_memory_folder()))
    state = state or conftest.build_empty_sqlite_state(folder)
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=3600))
    simulator = await start_simulator(service=service, legacy_port=0)
    urls = {"base_url": simulator.url, "legacy_base_url": simulator.legacy_url}
    sections: Any = {"environments": {"sandbox": urls}, "upstream": {"timeout_seconds": 3}}
    sections["state"] = state.model_dump(mode="json", exclude_unset=True)
    settings = build_settings(folder, simulator.url, **sections)
    (folder / "gateway.toml").write_text(
        f'[environments.sandbox]\nbase_url = "{simulator.url}"\n'
        f'legacy_base_url = "{simulator.legacy_url}"\n'
        f'[state]\nurl = "{state.url}"\nencryption_key_file = "{state.encryption_key_file}"\n'
    )
    key = {**KEY, "name": "shop", "api_key": DEMO_CREDENTIALS.api_key}
    await import_api_keys(settings, [key])
    await run_command(folder, "modes", "set", "--key", "shop", mode, "--yes")
    try:
        async with aiohttp.ClientSession() as session:
            stand = Stand(forker, service, settings, folder, session, mode == "forward")
            await stand.start_gateway(1)
            body = {"type": "individual", "firstName": "Ada", "lastName": "Byron"}
            body |= {"email": "ada@example.com", "payout": WALLET}
            body["address"] = {"street1": "1 Main Street", "city": "New York", "country": "US"}
            response = await stand.send_until_answered("POST", "/v1/recipients", body)
            stand.recipient = response.body["recipient"]["id"]
            yield stand
    finally:
        await simulator.stop()
        shutil.rmtree(folder)


def build_payment(stand: Stand, amount: str, *, is_signed: bool) -> dict[str, Any]:
    payment = {"recipient": {"id": stand.recipient}}
    if is_signed:
        return {**payment, "amount": amount, "currency": "USD"}
    return {**payment, "sourceAmount": amount}


def build_batch(stand: Stand, description: str) -> dict[str, Any]:
    payments = [build_payment(stand, "5.00", is_signed=False)]
    description = f"{description} {stand.run_count}"
    return {"sourceCurrency": "USD", "description": description, "payments": payments}


async def kill_and_retry(stand: Stand, write: PlannedWrite, point: int, retry: str) -> bool:
    """Returns whether the gateway was killed: there are fewer points than ``point`` otherwise."""
    stand.run_count += 1
    body: Any = None
    upstream = legacy_id = ""
    if write.action:
        response = await stand.send_until_answered(
            "POST", "/v1/batches", build_batch(stand, "before")
        )
        legacy_id, upstream = response.body["batch"]["id"], stand.newest_batch.id
        if write.has_body:
            body = build_payment(stand, str(FORWARDED_AMOUNT), is_signed=write.is_signed)
    else:
        body = build_batch(stand, "the write")
    path = f"/v1/batches/{upstream if write.is_signed else legacy_id}{write.action}".rstrip("/")
    batches_before = len(stand.service.find_or_create_tenant().batches)
    stand.armed_file.touch()
    first = await stand.send("POST", path, body, is_signed=write.is_signed)
    await asyncio.sleep(0.05)  # the delivery of a response is saved right after it
    stand.armed_file.unlink()
    was_killed = stand.gateway.code.done()
    await stand.gateway.stop()
    await stand.start_gateway(point + stand.point_step)

    sent_count = 1
    if first is None or first.status == 500:
        sends_signed = write.is_signed
        if retry == "other interface" and write.action:
            sends_signed = not sends_signed
            path = f"/v1/batches/{upstream if sends_signed else legacy_id}{write.action}"
        if write.has_body and (retry == "other body" or sends_signed != write.is_signed):
            body = (
                build_payment(stand, "8.00", is_signed=sends_signed)
                if write.action
                else build_batch(stand, "another")
            )
        last = await stand.send_until_answered("POST", path, body, is_signed=sends_signed)
        assert last.status in (200, 400, 406), last
        sent_count += 1
    check_outcome(stand, write, batches_before, sent_count)
    if not write.is_signed:
        await check_nothing_in_doubt(stand)
    if write.has_body and write.action:
        await check_batch_is_paid_as_shown(stand, legacy_id)
    return was_killed


def check_outcome(stand: Stand, write: PlannedWrite, batches_before: int, sent_count: int) -> None:
    batches = list(stand.service.find_or_create_tenant().batches.values())
    if not write.action:
        descriptions = [batch.description for batch in batches[batches_before:]]
        assert sorted(set(descriptions)) == sorted(descriptions), descriptions
        assert descriptions
        return
    (batch,) = batches[batches_before - 1 :]
    amounts = [str(payment.terms.source_amount) for payment in batch.payments.values()]
    if write.has_body:
        # Signed requests are never matched by their bodies: each is sent.
        expected = 1 + sent_count if write.is_signed else 3
        assert 2 <= len(amounts) <= expected, amounts
        if not write.is_signed:
            assert len(set(amounts)) == len(amounts), amounts
    else:
        assert stand.list_started_batches().count(batch.id) == 1


async def check_batch_is_paid_as_shown(stand: Stand, batch_id: str) -> None:
    path = f"/v1/batches/{batch_id}"
    shown_response = await stand.send_until_answered("GET", path)
    assert shown_response.status == 200, shown_response
    response = await stand.send_until_answered("POST", f"{path}/start-processing")
    assert response.status == 200, response
    assert response.body["batch"]["amount"] == shown_response.body["batch"]["amount"]
    assert stand.list_started_batches().count(stand.newest_batch.id) == 1


async def check_nothing_in_doubt(stand: Stand) -> None:
    for _ in range(MAX_TRIES):
        states = await count_operations_by_state(stand.settings)
        if not states["running"] and not states["unsettled"]:
            return
        stand.gateway.advance_clock()
        await stand.settle_forwarded_writes()
        await asyncio.sleep(0.2)
    raise AssertionError(states)


async def kill_at_every_point(stand: Stand, write: PlannedWrite) -> int:
    """Tries every point, or every ``stand.point_step``-th; returns the last."""
    points = 0
    for index in range(RETRIES_OF_A_POINT):
        await stand.gateway.stop()
        await stand.start_gateway(1)
        for point in range(1, MAX_POINTS, stand.point_step):
            retry = RETRIES[(point + index) % len(RETRIES)]
            try:
                was_killed = await kill_and_retry(stand, write, point, retry)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{write}, point {point}, {retry}: {error}") from error
            if not was_killed:
                break
            points = max(points, point)
    await check_nothing_in_doubt(stand)
    return points


@pytest.mark.parametrize("write", WRITES, ids=str)
async def test_killed_gateway_sends_a_write_once(write: PlannedWrite) -> None:
    async with open_forker() as forker, open_stand(forker, write.mode) as stand:
        # After each of: its record, its sending and its outcome.
        assert await kill_at_every_point(stand, write) >= 3


@pytest.mark.parametrize("write", WRITES if RETRIES_OF_A_POINT > 1 else WRITES[-1:], ids=str)
async def test_killed_gateway_on_postgresql_sends_a_write_once(
    write: PlannedWrite, postgres: State
) -> None:
    async with open_forker() as forker, open_stand(forker, write.mode, postgres) as stand:
        stand.point_step = 1 if RETRIES_OF_A_POINT > 1 else POSTGRESQL_STEP
        assert await kill_at_every_point(stand, write) >= 3
