"""Clock jumps of 29, 31 and 300 seconds in either direction during writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import select

from gateway.server.app import run_gateway
from gateway.storage import open_store
from gateway.storage.tables import upstream_writes
from tests.journal_check import check_journal
from tests.recording_service import RecordingService, open_recording_service
from tests.running_gateway import (
    KEY,
    GatewayUnderTest,
    build_clocks,
    build_settings,
    import_api_keys,
    shorten_reading_pauses,
)
from tests.signed_requests import (
    SigningClient,
    build_response,
    open_raw_service,
    respond_with,
    send_raw,
)
from tests.simulator import Service
from tests.sockets import wait_until
from tests.test_upstream_faults import AdjustableClock, build_person

JUMP_SECONDS = (29, -29, 31, -31, 300, -300)


@dataclass
class AdjustableWallClock:
    """A wall clock with an adjustable offset."""

    offset_seconds: float = 0

    def __call__(self) -> float:
        return time.time() + self.offset_seconds


@dataclass
class GatewayWithClocks:
    gateway: GatewayUnderTest
    recorder: RecordingService
    wall_clock: AdjustableWallClock
    monotonic_clock: AdjustableClock

    def count_created(self, run_tag: str) -> int:
        return len(self.recorder.list_executed_writes("POST", "/v1/recipients", text=run_tag))

    def count_sent(self, run_tag: str) -> int:
        return len(self.recorder.list_writes("POST", "/v1/recipients", text=run_tag))


@asynccontextmanager
async def open_gateway_with_clocks(folder: Path) -> AsyncIterator[GatewayWithClocks]:
    wall_clock, monotonic_clock = AdjustableWallClock(), AdjustableClock()
    async with open_recording_service(Service(seed=1)) as recorder:
        settings = build_settings(folder, recorder.url, upstream={"timeout_seconds": 1})
        await import_api_keys(settings, [KEY])
        with shorten_reading_pauses():
            async with (
                run_gateway(settings, **build_clocks(monotonic_clock, wall_clock)) as running,
                aiohttp.ClientSession() as session,
            ):
                yield GatewayWithClocks(
                    GatewayUnderTest(running, settings, session),
                    recorder,
                    wall_clock,
                    monotonic_clock,
                )


@pytest.mark.parametrize("jump", JUMP_SECONDS)
async def test_writes_continue_and_execute_once_across_clock_jumps(
    jump: float, tmp_path: Path
) -> None:
    async with open_gateway_with_clocks(tmp_path) as setup:
        for offset in (0, jump, 0):
            setup.wall_clock.offset_seconds = offset
            run_tag = f"at{offset}-{len(setup.recorder.requests)}-end"
            response = await setup.gateway.request("POST", "/v1/recipients", build_person(run_tag))
            assert response.status == 200, response.text
            assert setup.count_created(run_tag) == 1
        await check_journal(setup.gateway.settings, setup.recorder)


@pytest.mark.parametrize("jump", JUMP_SECONDS)
async def test_clock_jump_does_not_resend_a_write_that_may_still_execute(
    jump: float, tmp_path: Path
) -> None:
    """A delayed request is executed in the end, although the clock says that it has expired."""
    async with open_gateway_with_clocks(tmp_path) as setup:
        due = asyncio.Event()
        setup.recorder.add_fault("late", "POST", "/v1/recipients", text="late", due_event=due)
        first_response = await setup.gateway.request("POST", "/v1/recipients", build_person("late"))
        assert first_response.status == 500
        setup.wall_clock.offset_seconds = jump
        early_response = await setup.gateway.request("POST", "/v1/recipients", build_person("late"))
        assert (early_response.status, setup.count_sent("late")) == (500, 1), early_response.text
        assert int(early_response.headers["Retry-After"]) > 10
        due.set()
        await wait_until(lambda: setup.recorder.is_idle)
        last = await setup.gateway.request("POST", "/v1/recipients", build_person("late"))
        assert last.status == 200, last.text
        assert (setup.count_sent("late"), setup.count_created("late")) == (1, 1)
        await check_journal(setup.gateway.settings, setup.recorder)


@pytest.mark.parametrize("jump", JUMP_SECONDS)
async def test_lost_write_is_sent_again_once_it_can_no_longer_execute(
    jump: float, tmp_path: Path
) -> None:
    async with open_gateway_with_clocks(tmp_path) as setup:
        setup.recorder.add_fault("reset before", "POST", "/v1/recipients", text="lost")
        assert (
            await setup.gateway.request("POST", "/v1/recipients", build_person("lost"))
        ).status == 500
        setup.wall_clock.offset_seconds = jump
        for _ in range(20):
            setup.monotonic_clock.ahead_seconds += 20
            response = await setup.gateway.request("POST", "/v1/recipients", build_person("lost"))
            if response.status == 200:
                break
            await asyncio.sleep(0)
        assert response.status == 200, response.text
        assert (setup.count_sent("lost"), setup.count_created("lost")) == (2, 1)
        await check_journal(setup.gateway.settings, setup.recorder)


@pytest.mark.parametrize("drift", [25, -25])
async def test_answers_to_signed_requests_correct_the_clock(drift: float, tmp_path: Path) -> None:
    """Without other traffic, a drifting clock would in the end refuse every signed request."""
    async with open_gateway_with_clocks(tmp_path) as setup:

        async def status(stamp: float) -> int:
            data = SigningClient().build_request("GET", "/v1/recipients", stamp=int(stamp))
            return (await send_raw(setup.gateway, data)).status

        setup.wall_clock.offset_seconds = drift
        assert [await status(time.time()) for _ in range(2)] == [200, 200]
        setup.wall_clock.offset_seconds = 2 * drift
        assert await status(time.time()) == 200
        # The service accepts 30 seconds in either direction.
        assert [await status(time.time() + offset) for offset in (-35, 35)] == [401, 401]


@pytest.mark.parametrize("offset_seconds", [45, -45, 3600])
async def test_date_header_of_a_proxy_does_not_refuse_signed_requests(
    offset_seconds: float, tmp_path: Path
) -> None:
    """The ``Date`` of a proxy, for example, contradicts timestamps that the service accepted."""
    date = formatdate(time.time() + offset_seconds, usegmt=True)
    response = build_response(200, b'{"ok":true,"balances":{}}', f"Date: {date}")
    async with open_raw_service(respond_with(response)) as service:
        settings = build_settings(tmp_path, service.url)
        await import_api_keys(settings, [KEY])
        async with run_gateway(settings) as running, aiohttp.ClientSession() as session:
            gateway = GatewayUnderTest(running, settings, session)
            for _ in range(2):  # the gateway's own signed requests do not reveal the time either
                assert (await gateway.request("GET", "/v1/profile/balances")).status == 200
            for _ in range(4):
                data = SigningClient().build_request(
                    "GET", "/v1/recipients", stamp=int(time.time())
                )
                assert (await send_raw(gateway, data)).status == 200


async def test_clock_that_is_set_a_day_ahead_makes_no_write_in_doubt_old(tmp_path: Path) -> None:
    """A machine often starts with a wrong date, and gets the right one a little later."""
    async with open_gateway_with_clocks(tmp_path) as setup:
        due = asyncio.Event()
        setup.recorder.add_fault("late", "POST", "/v1/recipients", text="late", due_event=due)
        response = await setup.gateway.request("POST", "/v1/recipients", build_person("late"))
        assert response.status == 500
        setup.wall_clock.offset_seconds = 25 * 3600
        due.set()
        await wait_until(lambda: setup.recorder.is_idle)
        response = await setup.gateway.request("POST", "/v1/recipients", build_person("late"))
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, "true")
        assert setup.count_created("late") == 1


async def test_write_that_is_signed_again_is_recorded_with_its_last_timestamp(
    tmp_path: Path,
) -> None:
    """After a restart, its object would otherwise seem older than the write."""
    async with open_gateway_with_clocks(tmp_path) as setup:
        setup.wall_clock.offset_seconds = 900
        # The first one is refused because of its timestamp.
        setup.recorder.add_fault("reset", "POST", "/v1/recipients", text="ahead", skip_count=1)
        setup.recorder.add_fault("reset before", "GET", times=5)
        response = await setup.gateway.request("POST", "/v1/recipients", build_person("ahead"))
        assert (response.status, setup.count_created("ahead")) == (500, 1), response.text
        async with open_store(setup.gateway.settings.state) as store:
            (write,) = await store.fetch(select(upstream_writes.c.recorded_at))
        assert abs(write.recorded_at.timestamp() - time.time()) < 60


async def test_clock_that_was_set_back_before_a_restart_makes_no_retry(tmp_path: Path) -> None:
    async with open_gateway_with_clocks(tmp_path) as setup:
        setup.wall_clock.offset_seconds = 3600
        response = await setup.gateway.request("POST", "/v1/recipients", build_person("twice"))
        assert response.status == 200
    async with open_gateway_with_clocks(tmp_path) as setup:
        response = await setup.gateway.request("POST", "/v1/recipients", build_person("twice"))
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
        assert setup.count_created("twice") == 1
