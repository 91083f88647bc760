"""Overload on real sockets: load shedding, the calls that are made, and bounds on memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.http import request_reader
from gateway.server import app
from tests.running_gateway import KEY, GatewayUnderTest
from tests.signed_requests import (
    CLIENT,
    EMPTY_LIST,
    INTERNAL,
    RawService,
    RecordedRequest,
    extract_error,
    open_raw_service,
    open_signed_gateway,
    respond_with,
)
from tests.sockets import RawConnection, RawResponse, assert_legacy, open_connection, wait_until

MEGABYTE = 1024 * 1024
BOLT_KEY = {
    "merchant": "bolt",
    "api_key": "bolt-api-key",
    "access_key": "BOLTACCESSKEY",
    "secret_key": "bolt's",
}
SMALL_LIMITS = {
    "in_flight": 4,
    "in_flight_per_merchant": 2,
    "queue": 4,
    "queue_per_merchant": 2,
    "queue_seconds": 30,
}


class GatedService:
    """A service that delays answers to one access key until a gate opens."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.slow_access_key = "SIMULATORACCESSKEY"

    async def respond(
        self, _request: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.slow_access_key in _request.headers["authorization"]:
            await self.is_open.wait()
        writer.write(EMPTY_LIST)


@asynccontextmanager
async def open_gated_gateway(
    folder: Path, **load: float
) -> AsyncIterator[tuple[GatewayUnderTest, RawService, GatedService]]:
    service = GatedService()
    async with (
        open_raw_service(service.respond) as recorder,
        open_signed_gateway(folder, recorder.url, BOLT_KEY, load=load) as gateway,
    ):
        yield gateway, recorder, service


def build_legacy_request(
    key: str = KEY["api_key"], method: str = "GET", *headers: str, body: bytes = b""
) -> bytes:
    """Builds a request that makes one upstream call, or creates a recipient."""
    target = "/v1/profile/balances" if method == "GET" else "/v1/recipients"
    lines = [f"{method} {target} HTTP/1.1", "Host: gateway", f"X-API-Key: {key}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def wait_for_response(connection: RawConnection) -> RawResponse | None:
    """Waits for an answer, for at most 30 seconds; returns None if the connection closes."""
    async with asyncio.timeout(30):
        try:
            return await connection._read_response(bodiless=False)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


class ConcurrentClients:
    """Clients with one connection for each request."""

    def __init__(self, gateway: GatewayUnderTest, stack: AsyncExitStack) -> None:
        self._port = gateway.running.port
        self._stack = stack

    async def send(self, data: bytes, times: int = 1) -> list[asyncio.Task[RawResponse | None]]:
        tasks = []
        for _ in range(times):
            connection = await self._stack.enter_async_context(await open_connection(self._port))
            await connection.send(data)
            tasks.append(asyncio.ensure_future(wait_for_response(connection)))
        return tasks


async def require_response(task: asyncio.Task[RawResponse | None]) -> RawResponse:
    response = await task
    assert response is not None, "closed without an answer"
    return response


def assert_shed(response: RawResponse) -> None:
    assert_legacy(response)
    assert (response.status, response.code) == INTERNAL
    assert int(response.headers["retry-after"]) >= 1


# Requests.


async def test_requests_over_a_merchants_share_are_shed_before_any_call(
    tmp_path: Path,
) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, recorder, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        tasks = await clients.send(build_legacy_request(), 4)
        await wait_until(lambda: (limiter.running_count, limiter.waiting_count) == (2, 2))
        (one_more,) = await clients.send(build_legacy_request())
        assert_shed(await require_response(one_more))
        assert gateway.running.load.shed_counts == {"too many requests wait": 1}
        await wait_until(lambda: len(recorder.requests) == 2)
        service.is_open.set()
        assert [(await require_response(task)).status for task in tasks] == [200] * 4
        assert len(recorder.requests) == 4, "what was shed was not sent"
        assert (limiter.running_count, limiter.waiting_count) == (0, 0)


async def test_slow_merchant_does_not_delay_another(tmp_path: Path) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, _recorder, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        await clients.send(build_legacy_request(), 4)
        await wait_until(lambda: (limiter.running_count, limiter.waiting_count) == (2, 2))
        for _ in range(5):
            (other_task,) = await clients.send(build_legacy_request(BOLT_KEY["api_key"]))
            assert (await require_response(other_task)).status == 200
        assert not service.is_open.is_set()
        service.is_open.set()


async def test_parallel_reads_of_a_merchant_leave_connections_to_another(tmp_path: Path) -> None:
    payments = [
        {"recipient": {"email": f"{n}@example.com"}, "sourceAmount": "1.00"} for n in range(8)
    ]
    body = json.dumps({"sourceCurrency": "USD", "payments": payments}).encode()
    batch = build_legacy_request(KEY["api_key"], "POST", f"Content-Length: {len(body)}", body=body)
    service = GatedService()
    async with (
        open_raw_service(service.respond) as recorder,
        open_signed_gateway(
            tmp_path, recorder.url, BOLT_KEY, load=SMALL_LIMITS, upstream={"connections": 5}
        ) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = ConcurrentClients(gateway, stack)
        await clients.send(batch.replace(b"/v1/recipients", b"/v1/batches"), 2)
        await wait_until(lambda: len(recorder.requests) >= 2)
        (other_task,) = await clients.send(build_legacy_request(BOLT_KEY["api_key"]))
        async with asyncio.timeout(3):
            assert (await require_response(other_task)).status == 200
        assert not service.is_open.is_set()
        service.is_open.set()


async def test_shed_write_is_not_sent(tmp_path: Path) -> None:
    body = json.dumps({"type": "individual", "firstName": "A", "lastName": "B", "email": "a@b.c"})
    write = build_legacy_request(
        KEY["api_key"], "POST", f"Content-Length: {len(body)}", "Expect: 100-continue"
    )
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, recorder, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        await clients.send(build_legacy_request(), 4)
        await wait_until(lambda: (limiter.running_count, limiter.waiting_count) == (2, 2))
        (shed_task,) = await clients.send(write)
        response = await require_response(shed_task)
        assert_shed(response)
        assert response.headers["connection"] == "close", "the body was not even asked for"
        assert [request for request in recorder.requests if request.method != "GET"] == []
        service.is_open.set()


async def test_signed_interface_sheds_in_its_form_and_shares_the_limit(
    tmp_path: Path,
) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, recorder, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        signed_tasks = await clients.send(CLIENT.build_request(), 2)
        await wait_until(lambda: limiter.running_count == 2)
        waiting_tasks = await clients.send(build_legacy_request(), 2)
        await wait_until(lambda: limiter.waiting_count == 2)
        (one_more,) = await clients.send(CLIENT.build_request("POST", "/v1/batches", b"{}"))
        response = await require_response(one_more)
        assert extract_error(response) == INTERNAL
        assert int(response.headers["retry-after"]) >= 1
        service.is_open.set()
        assert [
            (await require_response(task)).status for task in (*signed_tasks, *waiting_tasks)
        ] == [200] * 4
        assert {request.method for request in recorder.requests} == {"GET"}


@pytest.mark.parametrize("request_bytes", [build_legacy_request(), CLIENT.build_request()])
async def test_log_has_the_reason_for_which_a_request_was_shed(
    request_bytes: bytes, tmp_path: Path
) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, _, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        tasks = await clients.send(build_legacy_request(), 4)
        await wait_until(lambda: (limiter.running_count, limiter.waiting_count) == (2, 2))
        with capture_logs() as log:
            (one_more,) = await clients.send(request_bytes)
            assert (await require_response(one_more)).status == 500
        (line,) = log
        assert (line["error.type"], line["reason"]) == ("overloaded", "too many requests wait")
        service.is_open.set()
        for task in tasks:
            await task


async def test_unauthenticated_requests_take_no_slot(tmp_path: Path) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, recorder, _service),
        AsyncExitStack() as stack,
    ):
        clients = ConcurrentClients(gateway, stack)
        forged_request = CLIENT.build_request().replace(
            b"svcsign SIMULATORACCESSKEY:", b"svcsign SIMULATORACCESSKEY:0"
        )
        tasks = await clients.send(build_legacy_request("nobody's key"), 20) + await clients.send(
            forged_request, 20
        )
        statuses = {(await require_response(task)).status for task in tasks}
        assert statuses == {403, 401}
        assert not gateway.running.load.shed_counts
        assert recorder.requests == []


async def test_disconnected_client_releases_its_place_in_the_queue(tmp_path: Path) -> None:
    async with (
        open_gated_gateway(tmp_path, **SMALL_LIMITS) as (gateway, recorder, service),
        AsyncExitStack() as stack,
    ):
        clients, limiter = ConcurrentClients(gateway, stack), gateway.running.load.limiter
        await clients.send(build_legacy_request(), 2)
        await wait_until(lambda: limiter.running_count == 2)
        async with await open_connection(gateway.running.port) as leaving_connection:
            await leaving_connection.send(build_legacy_request())
            await wait_until(lambda: limiter.waiting_count == 1)
        async with await open_connection(gateway.running.port) as leaving_connection:
            await leaving_connection.send(CLIENT.build_request())
            await wait_until(lambda: limiter.waiting_count == 1)
        await wait_until(lambda: limiter.waiting_count == 0)
        service.is_open.set()
        await wait_until(lambda: limiter.running_count == 0)
        assert len(recorder.requests) == 2


async def test_queue_wait_is_limited(tmp_path: Path) -> None:
    load = {**SMALL_LIMITS, "queue_seconds": 0.1}
    async with (
        open_gated_gateway(tmp_path, **load) as (gateway, recorder, service),
        AsyncExitStack() as stack,
    ):
        clients = ConcurrentClients(gateway, stack)
        await clients.send(build_legacy_request(), 2)
        await wait_until(lambda: gateway.running.load.limiter.running_count == 2)
        (waiting_task,) = await clients.send(build_legacy_request())
        assert_shed(await require_response(waiting_task))
        assert gateway.running.load.shed_counts == {"waited longer than load.queue_seconds": 1}
        assert len(recorder.requests) <= 2
        service.is_open.set()


# Bodies.


async def test_large_bodies_are_bounded_and_small_ones_accepted(
    tmp_path: Path,
) -> None:
    limits, load = {"body_bytes": MEGABYTE}, {"held_bytes": 4 * MEGABYTE}
    declared = build_legacy_request(KEY["api_key"], "POST", f"Content-Length: {MEGABYTE}") + b"{"
    async with open_raw_service() as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, BOLT_KEY, limits=limits, load=load)
        )
        clients, memory_budget = (
            ConcurrentClients(gateway, stack),
            gateway.running.load.memory_budget,
        )
        tasks = await clients.send(declared, 100)
        await wait_until(lambda: sum(task.done() for task in tasks) == 98)
        for task in tasks:
            if task.done():
                assert_shed(await require_response(task))
        assert memory_budget.reserved_bytes == 2 * MEGABYTE, "a merchant has half"
        other_request = (
            build_legacy_request(BOLT_KEY["api_key"], "POST", f"Content-Length: {MEGABYTE}") + b"{"
        )
        other_tasks = await clients.send(other_request, 2)
        await wait_until(lambda: sum(task.done() for task in other_tasks) == 1)
        assert memory_budget.reserved_bytes == 3 * MEGABYTE, "the last eighth is for small bodies"
        (small,) = await clients.send(
            build_legacy_request(BOLT_KEY["api_key"], "POST", "Content-Length: 2") + b"{}"
        )
        assert (await require_response(small)).status == 406
        assert recorder.requests == []
        for task in (*tasks, *other_tasks):
            task.cancel()
    assert memory_budget.reserved_bytes == 0


async def test_decompressed_body_counts_against_the_bound(tmp_path: Path) -> None:
    limits, load = {"body_bytes": 2 * MEGABYTE}, {"held_bytes": 8 * MEGABYTE}
    large_gzip, small_gzip = (
        gzip.compress(b" " * (8 * MEGABYTE)),
        gzip.compress(b'{"type":"nothing"}'),
    )
    async with open_raw_service() as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, limits=limits, load=load)
        )
        clients, memory_budget = (
            ConcurrentClients(gateway, stack),
            gateway.running.load.memory_budget,
        )

        async def send_gzip(body: bytes) -> RawResponse:
            headers = (f"Content-Length: {len(body)}", "Content-Encoding: gzip")
            (tasks,) = await clients.send(
                build_legacy_request(KEY["api_key"], "POST", *headers, body=body)
            )
            return await require_response(tasks)

        assert (await send_gzip(large_gzip)).status == 413
        assert (await send_gzip(small_gzip)).status == 406
        assert memory_budget.reserved_bytes == 0
        assert memory_budget.try_reserve("demo sandbox", 3 * MEGABYTE)
        assert_shed(await send_gzip(large_gzip))
        assert gateway.running.load.shed_counts == {"request bodies exceed load.held_bytes": 1}
        assert memory_budget.reserved_bytes == 3 * MEGABYTE


async def test_chunked_body_counts_against_the_bound(tmp_path: Path) -> None:
    limits, load = {"body_bytes": MEGABYTE}, {"held_bytes": 4 * MEGABYTE}
    chunk = b"%x\r\n%b\r\n" % (MEGABYTE - 4096, b" " * (MEGABYTE - 4096))
    data = build_legacy_request(KEY["api_key"], "POST", "Transfer-Encoding: chunked") + chunk
    async with open_raw_service() as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, limits=limits, load=load)
        )
        clients, memory_budget = (
            ConcurrentClients(gateway, stack),
            gateway.running.load.memory_budget,
        )
        waiting = await clients.send(data, 2)
        await wait_until(lambda: memory_budget.reserved_bytes == 2 * (MEGABYTE - 4096))
        (third_task,) = await clients.send(data)
        assert_shed(await require_response(third_task))
        assert memory_budget.reserved_bytes == 2 * (MEGABYTE - 4096)
        for task in waiting:
            task.cancel()


async def test_body_slower_than_the_minimum_rate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reader, "BODY_SECONDS", 0.3)
    load = {"body_bytes_per_second": 1_000_000}
    async with (
        open_raw_service() as recorder,
        open_signed_gateway(tmp_path, recorder.url, load=load) as gateway,
    ):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(
                build_legacy_request(KEY["api_key"], "POST", "Content-Length: 100000")
            )
            pending_response = asyncio.ensure_future(connection.read_response())
            with contextlib.suppress(ConnectionError):
                while not pending_response.done():
                    await connection.send(b" ")
                    await asyncio.sleep(0.02)
            response = await require_response(pending_response)
        assert response.status == 406
        assert "in time" in response.body.decode()
        assert recorder.requests == []


# Connections.


async def test_idle_connections_are_closed_for_active_ones(tmp_path: Path) -> None:
    load = {"connections": 16}
    async with open_raw_service(respond_with(EMPTY_LIST)) as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, load=load)
        )
        tracker = gateway.running.server.tracker
        for number in range(60):
            connection = await stack.enter_async_context(
                await open_connection(gateway.running.port)
            )
            await connection.send(b"GET /v1/slo" if number % 2 else b"")
        (tasks,) = await ConcurrentClients(gateway, stack).send(build_legacy_request())
        assert (await require_response(tasks)).status == 200
        await wait_until(lambda: tracker.closed_counts["for_others"] == 61 - 16)
        assert len(tracker.connections) == 16
        assert len(recorder.requests) == 1


async def test_connection_with_a_request_in_flight_is_not_closed(tmp_path: Path) -> None:
    load = {"connections": 16, "in_flight": 40, "in_flight_per_merchant": 40}
    async with (
        open_gated_gateway(tmp_path, **load) as (gateway, _recorder, service),
        AsyncExitStack() as stack,
    ):
        clients = ConcurrentClients(gateway, stack)
        tasks = await clients.send(build_legacy_request(), 16)
        await wait_until(lambda: gateway.running.load.limiter.running_count == 16)
        async with await open_connection(gateway.running.port) as too_many:
            assert await too_many.wait_closed()
        service.is_open.set()
        assert [(await require_response(task)).status for task in tasks] == [200] * 16


async def test_idle_connections_are_closed_under_pressure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PRESSED_SECONDS", 0.2)
    load = {"connections": 16}
    async with open_raw_service() as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, load=load)
        )
        tracker = gateway.running.server.tracker
        for number in range(12):
            connection = await stack.enter_async_context(
                await open_connection(gateway.running.port)
            )
            await connection.send(b"POST /v1/slo" if number % 2 else b"")
        await wait_until(lambda: tracker.closed_counts["overdue"] == 12)
        assert len(tracker.connections) == 0


async def test_unread_long_responses_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PRESSED_SECONDS", 0.2)
    body = b'{"ok":true,"recipient":{"id":"R-1","name":"%b"}}' % (b"n" * 9 * MEGABYTE)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    request = build_legacy_request().replace(b"profile/balances", b"recipients/R-1")
    bounds = {"load": {"held_bytes": 16 * MEGABYTE}, "limits": {"body_bytes": MEGABYTE}}
    async with (
        open_raw_service(respond_with(head + body)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, **bounds) as gateway,
        AsyncExitStack() as stack,
    ):
        tracker = gateway.running.server.tracker
        for unread_count in range(3):
            client = stack.enter_context(socket.socket())
            # Little, so that the kernel does not hold the response instead of the gateway.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", gateway.running.port))
            await loop.sock_sendall(client, request)
            await wait_until(lambda: len(recorder.requests) == unread_count + 1)  # noqa: B023
            await wait_until(lambda: tracker.closed_counts["unread"] == unread_count)  # noqa: B023
        assert len(tracker.connections) == 1
