"""Endpoints that the service may lack: when one counts as missing, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault
from tests.house import House, open_house
from tests.operating import Post, logged, post
from tests.payday import done, make_batch, make_recipient, payment_ids

HTML = b"<html><title>404 Not Found</title><h1>Not Found</h1></html>"
EVER = 1_000_000


def page(path: str = "*", status: int = 404, times: int = EVER) -> Fault:
    """Builds a fault that answers with an HTML page, as a proxy does."""
    return Fault("*", path, status, HTML, {"Content-Type": "text/html"}, times=times)


async def listed(house: House) -> set[str]:
    return {batch["id"] for batch in (await done(house, "GET", "/batches"))["batches"]}


async def refused(house: House) -> bool:
    """Whether the list is a 500, instead of being incomplete or a 404."""
    got = await house.ask("GET", "/v1/batches")
    if got.status != 500:
        return False
    assert got.body["errors"][0]["code"] == "internal_server_error"
    return True


async def eventually(so: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not await so():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.05)


async def found(here: Post, state: str) -> dict[str, Any]:
    """Returns the finding of `doctor` on the list of batches."""
    told = await here.told("doctor")
    one = next(one for one in told["findings"] if one["looked_at"] == "GET /batches")
    assert one["state"] == state, one
    return dict(one)


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("knew", [True, False], ids=["listed before", "never listed"])
async def test_a_page_in_front_of_the_service_never_shortens_the_list(
    *, knew: bool, status: int, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with post(tmp_path) as here, AsyncExitStack() as stack:
        recipient = await make_recipient(here.house)
        made = {await make_batch(here.house, recipient, "5.00") for _ in range(2)}
        url = here.house.settings.environments.configured()["sandbox"].base_url
        other = await stack.enter_async_context(open_house(tmp_path / "other", url))
        if knew:
            assert len(await listed(other)) == 2
        here.service.faults.append(page(status=status))
        assert await refused(other)
        assert await refused(here.house)
        here.service.faults.clear()
        assert len(await listed(other)) == 2
        assert await listed(here.house) == made


async def test_a_page_between_two_good_moments_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        url = here.house.settings.environments.configured()["sandbox"].base_url
        async with open_house(tmp_path / "other", url) as other:
            here.service.faults += [page("/v1/batches", times=2), page("/v1/recipients", times=1)]
            assert await refused(other), "the read right after the first is a page too"
            assert len(await listed(other)) == 1, "one refusal, and the second try is answered"


async def test_a_list_that_was_there_is_500_until_doctor_finds_it_gone_or_it_is_back(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        house = here.house
        batch = await make_batch(house, await make_recipient(house), "5.00")
        assert await listed(house) == {batch}
        here.service.faults.append(page("/v1/batches"))
        for _ in range(2):
            assert await refused(house)
        assert "run `payout-gateway doctor`" in logged(tmp_path)
        said = await found(here, "warning")
        assert "not available (status 404, just now)" in said["said"]
        assert "doctor" in said["do"]

        async def is_listed() -> bool:
            return not await refused(house)

        await eventually(is_listed)
        calls = here.sent("GET", "/v1/batches")
        assert await listed(house) == {batch}
        assert here.sent("GET", "/v1/batches") == calls, "it is not tried meanwhile"
        here.service.faults.clear()
        assert (await found(here, "ok"))["said"] == "available: tried just now"

        async def is_tried() -> bool:
            calls = here.sent("GET", "/v1/batches")
            await listed(house)
            return here.sent("GET", "/v1/batches") > calls

        await eventually(is_tried)


async def test_doctor_corrects_a_gateway_that_runs(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with post(tmp_path) as here:
        url = here.house.settings.environments.configured()["sandbox"].base_url
        async with open_house(tmp_path / "other", url) as other:
            await make_batch(other, await make_recipient(other), "5.00")
        here.service.faults.append(page("/v1/batches"))
        assert await listed(here.house) == set()
        assert "not available" in (await found(here, "ok"))["said"]
        here.service.faults.clear()
        assert await listed(here.house) == set(), "it is remembered"
        await found(here, "ok")

        async def is_whole() -> bool:
            return len(await listed(here.house)) == 1

        await eventually(is_whole)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_edit_that_meets_a_page_is_not_in_doubt_and_makes_no_draft(
    status: int, tmp_path: Path
) -> None:
    async with post(tmp_path) as here:
        house = here.house
        batch = await make_batch(house, await make_recipient(house), "5.00", "6.00")
        first, second = await payment_ids(house, batch)
        here.service.faults += [
            page("/v1/batches/*/payments/*", status, times=2),
            Fault("GET", "/v1/batch/*/summary"),
            Fault("GET", "/v1/batch/*/summary"),
            page("/v1/batch/*/summary", times=1),
        ]
        got = await house.ask("DELETE", f"/v1/batches/{batch}/payments/{first}")
        assert (got.status, "Retry-After" in got.headers) == (500, False)
        assert await payment_ids(house, batch) == [first, second]
        assert not (await here.told("writes", "unsettled"))["writes"]
        await done(house, "DELETE", f"/batches/{batch}/payments/{first}")
        await done(house, "POST", f"/batches/{batch}/start-processing")
        assert here.service.created["batch"] == 1


@pytest.mark.parametrize("sees", [True, False], ids=["says so", "a page"])
async def test_a_batch_that_was_deleted_at_the_service_leaves_the_list(
    *, sees: bool, tmp_path: Path
) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        kept, gone = [await make_batch(here.house, recipient, "5.00") for _ in range(2)]
        world = here.service.world()
        del world.batches[[*world.batches][-1]]
        if not sees:
            here.service.faults.append(page("/v1/batch/*/summary", times=1))
        assert await listed(here.house) == ({kept} if sees else {kept, gone})
        assert await listed(here.house) == {kept}
