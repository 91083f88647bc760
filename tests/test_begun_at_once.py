"""A concurrent edit by a translated key and start by a forwarded key of one batch.

Both are the first to touch the batch. The first one decides at which service the batch is; the
other one follows it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault
from gateway.simulator.switches import Key
from gateway.writes.batch_routing import BatchRouting
from mappings.effects import CompareAndSet
from tests.house import KEY, Got
from tests.operating import logged
from tests.test_cutover import imported, populate
from tests.valley import Valley, open_valley

FORWARDED = {"X-API-Key": KEY["api_key"]}
"""The merchant's other key, which is not forwarded."""


@dataclass
class Street:
    """An imported batch without later requests; one key is forwarded, the other translated."""

    here: Valley
    path: str
    paid: str
    """One of its payments."""

    async def edits(self) -> Got:
        path = f"{self.path}/payments/{self.paid}"
        return await self.here.house.ask(
            "PATCH", path, {"sourceAmount": "99.00"}, headers=FORWARDED
        )

    async def starts(self) -> Got:
        return await self.here.house.ask("POST", f"{self.path}/start-processing")

    async def amount(self) -> str:
        payments = (await self.here.directly("GET", f"{self.path}/payments")).body["payments"]
        return next(one["sourceAmount"] for one in payments if one["id"] == self.paid)

    def begun_there(self) -> int:
        """Counts start requests at the legacy service."""
        return self.here.asked_legacy("POST", f"{self.path}/start-processing")

    def begun_here(self) -> int:
        return sum(one.path.endswith("/start-processing") for one in self.written())

    def written(self) -> list[Any]:
        """Lists writes at the current interface."""
        calls = self.here.current.calls("*", "*", face="current")
        return [one for one in calls if one.method != "GET"]


@asynccontextmanager
async def open_street(folder: Path) -> AsyncIterator[Street]:
    async with open_valley(folder, apart=False) as here:
        other = Key("SECONDACCESSKEY", "second-secret-key", api_key=KEY["api_key"])
        here.legacy.merchants.keys[other.access_key] = other
        made = await populate(here)
        await imported(here)
        await here.switch("forward", "batches")
        path = f"/v1/batches/{made['open']}"
        payments = (await here.directly("GET", f"{path}/payments")).body["payments"]
        yield Street(here, path, payments[0]["id"])


async def test_an_edit_that_meets_a_start_at_the_legacy_service_goes_there(tmp_path: Path) -> None:
    async with open_street(tmp_path) as street:
        street.here.current.faults.append(Fault("GET", "*", answer_delay=0.5))
        edit = asyncio.ensure_future(street.edits())
        await asyncio.sleep(0.2)
        started, edited = await street.starts(), await edit
        assert (started.status, street.begun_there()) == (200, 1)
        assert (edited.status, edited.body["errors"][0]["code"]) == (406, "invalid_status")
        assert street.here.asked_legacy("PATCH", f"{street.path}/*/*") == 1
        assert (street.written(), await street.amount()) == ([], "10.00")
        line = next(one for one in logged(tmp_path).splitlines() if "=update_payment" in one)
        assert "forward" in line


async def test_a_start_that_meets_an_edit_at_the_current_service_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_street(tmp_path) as street:
        marks, decided = BatchRouting.marks, asyncio.Event()

        async def marked_late(self: BatchRouting, *given: Any) -> list[CompareAndSet]:
            its = await marks(self, *given)
            await decided.wait()
            return its

        monkeypatch.setattr(BatchRouting, "marks", marked_late)
        start = asyncio.ensure_future(street.starts())
        await asyncio.sleep(0.2)
        edited = await street.edits()
        decided.set()
        started = await start
        assert (edited.status, started.status) == (200, 200)
        assert (street.begun_there(), len(street.written())) == (0, 2)
        assert await street.amount() == "99.00"


async def test_of_many_that_meet_no_two_win_at_different_services(tmp_path: Path) -> None:
    async with open_street(tmp_path) as street:
        street.here.current.faults.append(Fault("GET", "*", answer_delay=0.02, times=20))
        asked = [one() for _ in range(5) for one in (street.starts, street.edits)]
        got = await asyncio.gather(*asked)
        started = [one.status for one in got[::2]]
        edited = [one.status for one in got[1::2]]
        assert 200 in started
        assert street.begun_there() + street.begun_here() == 1
        begun_there = street.begun_there() > 0
        assert begun_there is not bool(street.written())
        expected = "99.00" if 200 in edited else "10.00"
        assert await street.amount() == expected
        assert set(started + edited) <= {200, 406, 500}
