"""Overload on real sockets: load shedding, the calls that are made, and bounds on memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.house import KEY, House
from tests.signed import (
    CLIENT,
    INTERNAL,
    NOTHING_HELD,
    Recorder,
    Written,
    open_signed,
    recording,
    refused,
    says,
)
from tests.sockets import Heard, Wire, assert_legacy, wire

MEGABYTE = 1024 * 1024
BOLT = {
    "merchant": "bolt",
    "api_key": "bolt-api-key",
    "access_key": "BOLTACCESSKEY",
    "secret_key": "bolt's",
}
SMALL = {
    "in_flight": 4,
    "in_flight_per_merchant": 2,
    "queue": 4,
    "queue_per_merchant": 2,
    "queue_seconds": 30,
}


class Gate:
    """A service that delays answers to one access key until a gate opens."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.slow = "SIMULATORACCESSKEY"

    async def play(
        self, written: Written, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.slow in written.headers["authorization"]:
            await self.open.wait()
        writer.write(NOTHING_HELD)


@asynccontextmanager
async def gated(folder: Path, **load: float) -> AsyncIterator[tuple[House, Recorder, Gate]]:
    gate = Gate()
    async with (
        recording(gate.play) as recorder,
        open_signed(folder, recorder.url, BOLT, load=load) as house,
    ):
        yield house, recorder, gate


def legacy(
    key: str = KEY["api_key"], method: str = "GET", *headers: str, body: bytes = b""
) -> bytes:
    """Builds a request that makes one upstream call, or creates a recipient."""
    target = "/v1/profile/balances" if method == "GET" else "/v1/recipients"
    lines = [f"{method} {target} HTTP/1.1", "Host: gateway", f"X-API-Key: {key}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def patiently(connection: Wire) -> Heard | None:
    """Waits for an answer, for at most 30 seconds; returns None if the connection closes."""
    async with asyncio.timeout(30):
        try:
            return await connection._answer(bodiless=False)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


class Crowd:
    """Clients with one connection for each request."""

    def __init__(self, house: House, stack: AsyncExitStack) -> None:
        self._port = house.running.port
        self._stack = stack

    async def ask(self, data: bytes, times: int = 1) -> list[asyncio.Task[Heard | None]]:
        asked = []
        for _ in range(times):
            connection = await self._stack.enter_async_context(await wire(self._port))
            await connection.say(data)
            asked.append(asyncio.ensure_future(patiently(connection)))
        return asked


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def answer(task: asyncio.Task[Heard | None]) -> Heard:
    heard = await task
    assert heard is not None, "closed without an answer"
    return heard


def assert_shed(heard: Heard) -> None:
    assert_legacy(heard)
    assert (heard.status, heard.code) == INTERNAL
    assert int(heard.headers["retry-after"]) >= 1


# Requests.


async def test_what_is_more_than_a_merchants_share_is_shed_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    async with gated(tmp_path, **SMALL) as (house, recorder, gate), AsyncExitStack() as stack:
        crowd, shares = Crowd(house, stack), house.running.load.shares
        asked = await crowd.ask(legacy(), 4)
        await until(lambda: (shares.going, shares.waiting) == (2, 2))
        (one_more,) = await crowd.ask(legacy())
        assert_shed(await answer(one_more))
        assert house.running.load.shed == {"too many requests wait": 1}
        await until(lambda: len(recorder.requests) == 2)
        gate.open.set()
        assert [(await answer(task)).status for task in asked] == [200] * 4
        assert len(recorder.requests) == 4, "what was shed was not sent"
        assert (shares.going, shares.waiting) == (0, 0)


async def test_a_slow_merchant_does_not_keep_another_waiting(tmp_path: Path) -> None:
    async with gated(tmp_path, **SMALL) as (house, _recorder, gate), AsyncExitStack() as stack:
        crowd, shares = Crowd(house, stack), house.running.load.shares
        await crowd.ask(legacy(), 4)
        await until(lambda: (shares.going, shares.waiting) == (2, 2))
        for _ in range(5):
            (other,) = await crowd.ask(legacy(BOLT["api_key"]))
            assert (await answer(other)).status == 200
        assert not gate.open.is_set()
        gate.open.set()


async def test_a_write_that_is_shed_leaves_no_trace_and_may_be_sent_again(tmp_path: Path) -> None:
    body = json.dumps({"type": "individual", "firstName": "A", "lastName": "B", "email": "a@b.c"})
    write = legacy(KEY["api_key"], "POST", f"Content-Length: {len(body)}", "Expect: 100-continue")
    async with gated(tmp_path, **SMALL) as (house, recorder, gate), AsyncExitStack() as stack:
        crowd, shares = Crowd(house, stack), house.running.load.shares
        await crowd.ask(legacy(), 4)
        await until(lambda: (shares.going, shares.waiting) == (2, 2))
        (shed,) = await crowd.ask(write)
        heard = await answer(shed)
        assert_shed(heard)
        assert heard.headers["connection"] == "close", "the body was not even asked for"
        assert [one for one in recorder.requests if one.method != "GET"] == []
        gate.open.set()


async def test_the_signed_face_sheds_in_its_own_words_and_shares_the_merchants_places(
    tmp_path: Path,
) -> None:
    async with gated(tmp_path, **SMALL) as (house, recorder, gate), AsyncExitStack() as stack:
        crowd, shares = Crowd(house, stack), house.running.load.shares
        signed = await crowd.ask(CLIENT.request(), 2)
        await until(lambda: shares.going == 2)
        waits = await crowd.ask(legacy(), 2)
        await until(lambda: shares.waiting == 2)
        (one_more,) = await crowd.ask(CLIENT.request("POST", "/v1/batches", b"{}"))
        heard = await answer(one_more)
        assert refused(heard) == INTERNAL
        assert int(heard.headers["retry-after"]) >= 1
        gate.open.set()
        assert [(await answer(task)).status for task in (*signed, *waits)] == [200] * 4
        assert {one.method for one in recorder.requests} == {"GET"}


async def test_nobody_without_a_good_key_or_signature_takes_a_place(tmp_path: Path) -> None:
    async with gated(tmp_path, **SMALL) as (house, recorder, _gate), AsyncExitStack() as stack:
        crowd = Crowd(house, stack)
        forged = CLIENT.request().replace(
            b"svcsign SIMULATORACCESSKEY:", b"svcsign SIMULATORACCESSKEY:0"
        )
        asked = await crowd.ask(legacy("nobody's key"), 20) + await crowd.ask(forged, 20)
        told = {(await answer(task)).status for task in asked}
        assert told == {403, 401}
        assert not house.running.load.shed
        assert recorder.requests == []


async def test_a_client_that_goes_away_gives_up_its_turn(tmp_path: Path) -> None:
    async with gated(tmp_path, **SMALL) as (house, recorder, gate), AsyncExitStack() as stack:
        crowd, shares = Crowd(house, stack), house.running.load.shares
        await crowd.ask(legacy(), 2)
        await until(lambda: shares.going == 2)
        async with await wire(house.running.port) as leaves:
            await leaves.say(legacy())
            await until(lambda: shares.waiting == 1)
        async with await wire(house.running.port) as leaves:
            await leaves.say(CLIENT.request())
            await until(lambda: shares.waiting == 1)
        await until(lambda: shares.waiting == 0)
        gate.open.set()
        await until(lambda: shares.going == 0)
        assert len(recorder.requests) == 2


async def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    load = {**SMALL, "queue_seconds": 0.1}
    async with gated(tmp_path, **load) as (house, recorder, gate), AsyncExitStack() as stack:
        crowd = Crowd(house, stack)
        await crowd.ask(legacy(), 2)
        await until(lambda: house.running.load.shares.going == 2)
        (waits,) = await crowd.ask(legacy())
        assert_shed(await answer(waits))
        assert house.running.load.shed == {"waited longer than load.queue_seconds": 1}
        assert len(recorder.requests) <= 2
        gate.open.set()


# Bodies.


async def test_large_bodies_are_held_to_a_bound_and_small_ones_still_find_room(
    tmp_path: Path,
) -> None:
    limits, load = {"body_bytes": MEGABYTE}, {"held_bytes": 4 * MEGABYTE}
    declared = legacy(KEY["api_key"], "POST", f"Content-Length: {MEGABYTE}") + b"{"
    async with recording() as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_signed(tmp_path, recorder.url, BOLT, limits=limits, load=load)
        )
        crowd, held = Crowd(house, stack), house.running.load.held
        asked = await crowd.ask(declared, 100)
        await until(lambda: sum(task.done() for task in asked) == 98)
        for task in asked:
            if task.done():
                assert_shed(await answer(task))
        assert held.total == 2 * MEGABYTE, "a merchant has half"
        others = legacy(BOLT["api_key"], "POST", f"Content-Length: {MEGABYTE}") + b"{"
        other = await crowd.ask(others, 2)
        await until(lambda: sum(task.done() for task in other) == 1)
        assert held.total == 3 * MEGABYTE, "the last eighth is for small bodies"
        (small,) = await crowd.ask(legacy(BOLT["api_key"], "POST", "Content-Length: 2") + b"{}")
        assert (await answer(small)).status == 406
        assert recorder.requests == []
        for task in (*asked, *other):
            task.cancel()
    assert held.total == 0


async def test_what_little_grows_to_is_held_as_it_grows(tmp_path: Path) -> None:
    limits, load = {"body_bytes": 2 * MEGABYTE}, {"held_bytes": 8 * MEGABYTE}
    bomb, little = gzip.compress(b" " * (8 * MEGABYTE)), gzip.compress(b'{"type":"nothing"}')
    async with recording() as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_signed(tmp_path, recorder.url, limits=limits, load=load)
        )
        crowd, held = Crowd(house, stack), house.running.load.held

        async def ask(body: bytes) -> Heard:
            headers = (f"Content-Length: {len(body)}", "Content-Encoding: gzip")
            (asked,) = await crowd.ask(legacy(KEY["api_key"], "POST", *headers, body=body))
            return await answer(asked)

        assert (await ask(bomb)).status == 413
        assert (await ask(little)).status == 406
        assert held.total == 0
        assert held.take("demo sandbox", 3 * MEGABYTE)
        assert_shed(await ask(bomb))
        assert house.running.load.shed == {"request bodies exceed load.held_bytes": 1}
        assert held.total == 3 * MEGABYTE


async def test_chunks_without_a_declared_length_are_held_as_they_come(tmp_path: Path) -> None:
    limits, load = {"body_bytes": MEGABYTE}, {"held_bytes": 4 * MEGABYTE}
    chunk = b"%x\r\n%b\r\n" % (MEGABYTE - 4096, b" " * (MEGABYTE - 4096))
    data = legacy(KEY["api_key"], "POST", "Transfer-Encoding: chunked") + chunk
    async with recording() as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_signed(tmp_path, recorder.url, limits=limits, load=load)
        )
        crowd, held = Crowd(house, stack), house.running.load.held
        waiting = await crowd.ask(data, 2)
        await until(lambda: held.total == 2 * (MEGABYTE - 4096))
        (third,) = await crowd.ask(data)
        assert_shed(await answer(third))
        assert held.total == 2 * (MEGABYTE - 4096)
        for task in waiting:
            task.cancel()


async def test_a_body_that_drips_slower_than_it_may_is_refused(tmp_path: Path) -> None:
    load = {"body_seconds": 0.3, "body_bytes_per_second": 1_000_000}
    async with recording() as recorder, open_signed(tmp_path, recorder.url, load=load) as house:
        async with await wire(house.running.port) as connection:
            await connection.say(legacy(KEY["api_key"], "POST", "Content-Length: 100000"))
            told = asyncio.ensure_future(connection.answer())
            with contextlib.suppress(ConnectionError):
                while not told.done():
                    await connection.say(b" ")
                    await asyncio.sleep(0.02)
            heard = await answer(told)
        assert heard.status == 406
        assert "in time" in heard.body.decode()
        assert recorder.requests == []


# Connections.


async def test_idle_and_slow_connections_make_place_for_those_that_ask(tmp_path: Path) -> None:
    load = {"connections": 16}
    async with recording(says(NOTHING_HELD)) as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(open_signed(tmp_path, recorder.url, load=load))
        tracker = house.running.server.tracker
        for number in range(60):
            connection = await stack.enter_async_context(await wire(house.running.port))
            await connection.say(b"GET /v1/slo" if number % 2 else b"")
        (asked,) = await Crowd(house, stack).ask(legacy())
        assert (await answer(asked)).status == 200
        await until(lambda: tracker.shed["for_others"] == 61 - 16)
        assert len(tracker.connections) == 16
        assert len(recorder.requests) == 1


async def test_a_connection_with_a_request_under_way_makes_no_place(tmp_path: Path) -> None:
    load = {"connections": 16, "in_flight": 40, "in_flight_per_merchant": 40}
    async with gated(tmp_path, **load) as (house, _recorder, gate), AsyncExitStack() as stack:
        crowd = Crowd(house, stack)
        asked = await crowd.ask(legacy(), 16)
        await until(lambda: house.running.load.shares.going == 16)
        async with await wire(house.running.port) as too_many:
            assert await too_many.closed()
        gate.open.set()
        assert [(await answer(task)).status for task in asked] == [200] * 16


async def test_under_pressure_silent_and_slow_connections_are_ended_though_nobody_else_comes(
    tmp_path: Path,
) -> None:
    load = {"connections": 16, "pressed_seconds": 0.2}
    async with recording() as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(open_signed(tmp_path, recorder.url, load=load))
        tracker = house.running.server.tracker
        for number in range(12):
            connection = await stack.enter_async_context(await wire(house.running.port))
            await connection.say(b"POST /v1/slo" if number % 2 else b"")
        await until(lambda: tracker.shed["overdue"] == 12)
        assert len(tracker.connections) == 0
