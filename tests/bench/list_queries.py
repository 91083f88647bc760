"""Measures list queries over all recipients, with and without an index, as their number grows.

The service is a list in memory that answers as fast as it can, in the same process: what is told is
the number of calls, which is the same wherever it runs, and beside it the seconds that it took here.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import structlog
from aiohttp import web

from gateway.simulator import views
from gateway.simulator.validation import encode_json
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Service

SIZES = (1_000, 10_000, 100_000)
SEARCHED = "an"
QUESTION = f"/v1/recipients?search={SEARCHED}&orderBy=city&sortBy=asc"
WARM = 5
VARIED = 2_000
"""Number of recipients that differ in more than ids, name suffixes and dates."""

MILLISECONDS_APART = 60_000
ACTIVE = b'"status":"active"'


@dataclass(slots=True)
class RecipientService:
    """Recipients by update date: the dates, in milliseconds, and the texts in the same order.

    ``archive_service`` holds the archived recipients, if they are listed for that status.
    """

    dates: list[int]
    texts: list[bytes]
    archive_service: RecipientService | None = None
    calls: int = 0
    rows: int = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.calls += 1
        query = dict(parse_qsl(request.raw_path.partition("?")[2]))
        source = (
            (self.archive_service or RecipientService([], []))
            if query.get("status") == "archived"
            else self
        )
        begin = bisect_left(
            source.dates, _format_date(query.get("startDate", "0001-01-01T00:00:00Z"))
        )
        end_index = bisect_right(
            source.dates, _format_date(query.get("endDate", "9999-01-01T00:00:00Z"))
        )
        page, size = int(query.get("page", "1")), min(int(query.get("pageSize", "10")), 1000)
        matches: Sequence[int] = range(begin, end_index)
        matches = matches[::-1] if query.get("sortBy") == "desc" else matches
        page_indexes = matches[(page - 1) * size : page * size]
        self.rows += len(page_indexes)
        page_info = {"page": page, "pages": -(-len(matches) // size), "records": len(matches)}
        rows = b",".join(source.texts[index] for index in page_indexes)
        body = b'{"ok":true,"recipients":[%b],"meta":%b}' % (rows, json.dumps(page_info).encode())
        return web.Response(body=body, content_type="application/json")

    def change(self, index: int) -> None:
        """Makes this recipient the most recently updated."""
        self._move(index, self, b"")

    def find_match_from(self, index: int) -> int:
        """The first match from an offset on."""
        rows = (
            (number, json.loads(self.texts[number])) for number in range(index, len(self.texts))
        )
        return next(number for number, row in rows if SEARCHED in row["name"].casefold())

    def archive(self, index: int) -> None:
        """Sets a status as the simulator does: the recipient is then listed under it only, with a new date."""
        self._move(index, self.archive_service or RecipientService([], []), b'"archived"')

    def _move(self, index: int, target: RecipientService, status: bytes) -> None:
        text, old = self.texts.pop(index), self.dates.pop(index)
        new = max([self.dates[-1], *target.dates[-1:]]) + MILLISECONDS_APART
        text = text.replace(_build_recipient_text(old), _build_recipient_text(new))
        target.dates.append(new)
        target.texts.append(text.replace(ACTIVE, b'"status":' + status) if status else text)


def _format_date(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _build_recipient_text(date: int) -> bytes:
    return f"{datetime.fromtimestamp(date / 1000):%Y-%m-%dT%H:%M:%S}.000Z".encode()  # noqa: DTZ006


def build_service(n: int) -> RecipientService:
    service = Service(seed=1)
    service.seed_recipients(min(n, VARIED), seed=7)
    tenant = service.find_or_create_tenant()
    varied = [views.build_recipient(tenant, recipient) for recipient in tenant.recipients.values()]
    first_date = _format_date("2020-01-01T00:00:00Z")
    recipient_service = RecipientService([], [])
    for number in range(n):
        row = varied[number % len(varied)]
        date = first_date + number * MILLISECONDS_APART
        rows_by_id = {
            **row,
            "id": f"R-{number:016d}",
            "status": "active",
            "updatedAt": _build_recipient_text(date).decode(),
        }
        recipient_service.dates.append(date)
        recipient_service.texts.append(encode_json(rows_by_id))
    return recipient_service


@dataclass(slots=True)
class Cost:
    calls: float
    seconds: float


@dataclass(slots=True)
class Growth:
    recipients: int
    costs: dict[str, Cost] = field(default_factory=dict)


@asynccontextmanager
async def _start_gateway(
    folder: Path, service: RecipientService, *, index: bool
) -> AsyncIterator[GatewayUnderTest]:
    runner = web.ServerRunner(web.Server(service.handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with open_gateway(folder, url, lists={"index": index}) as gateway:
            yield gateway
    finally:
        await runner.cleanup()


async def measure_size(n: int) -> Growth:
    service, growth = build_service(n), Growth(n)

    async def measure_queries(gateway: GatewayUnderTest, description: str, times: int = 1) -> Any:
        calls, start_time = service.calls, time.perf_counter()
        for _ in range(times):
            response = await gateway.request("GET", QUESTION)
            assert response.status == 200, response.text
        seconds = (time.perf_counter() - start_time) / times
        growth.costs[description] = Cost((service.calls - calls) / times, seconds)
        return response.body

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _start_gateway(folder, service, index=False) as gateway:
            read = await measure_queries(gateway, "read each time")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _start_gateway(folder, service, index=True) as gateway:
            indexed_response = await measure_queries(gateway, "first, with an index")
            assert indexed_response == read, "the index answers otherwise"
            await measure_queries(gateway, "warm", WARM)
            service.change(n // 3)
            await measure_queries(gateway, "one changed elsewhere")
            service.archive_service = RecipientService([], [])
            service.archive(service.find_match_from(n // 2))
            indexed_response = await measure_queries(gateway, "one archived elsewhere")
            service.archive_service = None
            service.archive(service.find_match_from(n // 5))
            unlisted_response = await measure_queries(
                gateway, "the same, where the archive is not listed"
            )
            records = [
                response["meta"]["records"]
                for response in (read, indexed_response, unlisted_response)
            ]
            assert records == [records[0] - archived_count for archived_count in range(3)], (
                "who is archived is shown"
            )
            await measure_queries(gateway, "warm again", WARM)
    return growth


def format_table(growths: Sequence[Growth]) -> str:
    names = [*growths[0].costs]
    rows = [["recipients", *names], ["---"] * (len(names) + 1)]
    for growth in growths:
        cells = [
            f"{cost.calls:g} ({_format_seconds(cost.seconds)})" for cost in growth.costs.values()
        ]
        rows.append([f"{growth.recipients:,}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


async def run_bench(sizes: Sequence[int]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    growths = []
    for size in sizes:
        print(f"{size:,} recipients", flush=True)
        growths.append(await measure_size(size))
    print(
        f"\nCalls of the service for one question (and how long it took):\n\n{format_table(growths)}"
    )
