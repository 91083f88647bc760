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

from gateway.server.app import run_gateway
from gateway.simulator import Service
from gateway.upstream.clock import ServiceClock
from tests.audit import audit
from tests.house import KEY, House, import_lines, settings_for
from tests.judge import Judge, judging
from tests.signed import Client, asked, http, recording, says
from tests.sockets import until
from tests.test_faults import Ticks, person

JUMPS = (29, -29, 31, -31, 300, -300)


@dataclass
class Watch:
    """A wall clock with an adjustable offset."""

    off: float = 0

    def __call__(self) -> float:
        return time.time() + self.off


@dataclass
class Town:
    house: House
    judge: Judge
    watch: Watch
    ticks: Ticks

    def made(self, mark: str) -> int:
        return len(self.judge.done("POST", "/v1/recipients", about=mark))

    def sent(self, mark: str) -> int:
        return len(self.judge.writes("POST", "/v1/recipients", about=mark))


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    watch, ticks = Watch(), Ticks()
    async with judging(Service(seed=1)) as judge:
        settings = settings_for(folder, judge.url, upstream={"timeout_seconds": 1})
        await import_lines(settings, [KEY])
        async with (
            run_gateway(settings, clock=ServiceClock(watch), monotonic=ticks) as running,
            aiohttp.ClientSession() as session,
        ):
            yield Town(House(running, settings, session), judge, watch, ticks)


@pytest.mark.parametrize("jump", JUMPS)
async def test_writes_go_on_and_none_is_executed_twice(jump: float, tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        for off in (0, jump, 0):
            here.watch.off = off
            mark = f"at{off}-{len(here.judge.heard)}-end"
            got = await here.house.ask("POST", "/v1/recipients", person(mark))
            assert got.status == 200, got.text
            assert here.made(mark) == 1
        await audit(here.house.settings, here.judge)


@pytest.mark.parametrize("jump", JUMPS)
async def test_what_may_still_come_is_not_sent_again_because_the_clock_was_set(
    jump: float, tmp_path: Path
) -> None:
    """A delayed request is executed in the end, although the clock says that it has expired."""
    async with town(tmp_path) as here:
        due = asyncio.Event()
        here.judge.does("late", "POST", "/v1/recipients", about="late", due=due)
        first = await here.house.ask("POST", "/v1/recipients", person("late"))
        assert first.status == 500
        here.watch.off = jump
        early = await here.house.ask("POST", "/v1/recipients", person("late"))
        assert (early.status, here.sent("late")) == (500, 1), early.text
        assert int(early.headers["Retry-After"]) > 10
        due.set()
        await until(lambda: here.judge.is_idle)
        last = await here.house.ask("POST", "/v1/recipients", person("late"))
        assert last.status == 200, last.text
        assert (here.sent("late"), here.made("late")) == (1, 1)
        await audit(here.house.settings, here.judge)


@pytest.mark.parametrize("jump", JUMPS)
async def test_what_was_lost_is_sent_again_once_it_can_come_no_more(
    jump: float, tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        here.judge.does("reset before", "POST", "/v1/recipients", about="lost")
        assert (await here.house.ask("POST", "/v1/recipients", person("lost"))).status == 500
        here.watch.off = jump
        for _ in range(20):
            here.ticks.ahead += 20
            got = await here.house.ask("POST", "/v1/recipients", person("lost"))
            if got.status == 200:
                break
            await asyncio.sleep(0)
        assert got.status == 200, got.text
        assert (here.sent("lost"), here.made("lost")) == (2, 1)
        await audit(here.house.settings, here.judge)


@pytest.mark.parametrize("drift", [25, -25])
async def test_what_signed_requests_are_answered_tells_the_service_s_time(
    drift: float, tmp_path: Path
) -> None:
    """Without other traffic, a drifting clock would in the end refuse every signed request."""
    async with town(tmp_path) as here:

        async def status(stamp: float) -> int:
            data = Client().request("GET", "/v1/recipients", stamp=int(stamp))
            return (await asked(here.house, data)).status

        here.watch.off = drift
        assert [await status(time.time()) for _ in range(2)] == [200, 200]
        here.watch.off = 2 * drift
        assert await status(time.time()) == 200
        # The service accepts 30 seconds in either direction.
        assert [await status(time.time() + off) for off in (-35, 35)] == [401, 401]


@pytest.mark.parametrize("odd", [45, -45, 3600])
async def test_a_date_that_is_not_the_service_s_keeps_no_signed_request_out(
    odd: float, tmp_path: Path
) -> None:
    """The ``Date`` of a proxy, for example, contradicts timestamps that the service accepted."""
    date = formatdate(time.time() + odd, usegmt=True)
    answer = http(200, b'{"ok":true,"balances":{}}', f"Date: {date}")
    async with recording(says(answer)) as service:
        settings = settings_for(tmp_path, service.url)
        await import_lines(settings, [KEY])
        async with run_gateway(settings) as running, aiohttp.ClientSession() as session:
            house = House(running, settings, session)
            for _ in range(2):  # the gateway's own signed requests do not reveal the time either
                assert (await house.ask("GET", "/v1/profile/balances")).status == 200
            for _ in range(4):
                data = Client().request("GET", "/v1/recipients", stamp=int(time.time()))
                assert (await asked(house, data)).status == 200
