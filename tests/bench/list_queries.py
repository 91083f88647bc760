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

from gateway.simulator import Service, views
from gateway.simulator.json_codec import encode_json
from tests.running_gateway import GatewayUnderTest, open_gateway

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

    ``archived`` has those that were archived, where they are listed for that status.
    """

    dates: list[int]
    texts: list[bytes]
    archived: RecipientService | None = None
    calls: int = 0
    rows: int = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.calls += 1
        query = dict(parse_qsl(request.raw_path.partition("?")[2]))
        its = (
            (self.archived or RecipientService([], []))
            if query.get("status") == "archived"
            else self
        )
        begin = bisect_left(its.dates, _format_date(query.get("startDate", "0001-01-01T00:00:00Z")))
        end = bisect_right(its.dates, _format_date(query.get("endDate", "9999-01-01T00:00:00Z")))
        page, size = int(query.get("page", "1")), min(int(query.get("pageSize", "10")), 1000)
        places: Sequence[int] = range(begin, end)
        places = places[::-1] if query.get("sortBy") == "desc" else places
        shown = places[(page - 1) * size : page * size]
        self.rows += len(shown)
        meta = {"page": page, "pages": -(-len(places) // size), "records": len(places)}
        rows = b",".join(its.texts[place] for place in shown)
        body = b'{"ok":true,"recipients":[%b],"meta":%b}' % (rows, json.dumps(meta).encode())
        return web.Response(body=body, content_type="application/json")

    def change(self, place: int) -> None:
        """Makes this recipient the most recently updated."""
        self._move(place, self, b"")

    def find_match_from(self, place: int) -> int:
        """The first match from an offset on."""
        rows = (
            (number, json.loads(self.texts[number])) for number in range(place, len(self.texts))
        )
        return next(number for number, row in rows if SEARCHED in row["name"].casefold())

    def archive(self, place: int) -> None:
        """Sets a status as the simulator does: the recipient is then listed under it only, with a new date."""
        self._move(place, self.archived or RecipientService([], []), b'"archived"')

    def _move(self, place: int, into: RecipientService, status: bytes) -> None:
        text, old = self.texts.pop(place), self.dates.pop(place)
        new = max([self.dates[-1], *into.dates[-1:]]) + MILLISECONDS_APART
        text = text.replace(_build_recipient_text(old), _build_recipient_text(new))
        into.dates.append(new)
        into.texts.append(text.replace(ACTIVE, b'"status":' + status) if status else text)


def _format_date(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _build_recipient_text(date: int) -> bytes:
    return f"{datetime.fromtimestamp(date / 1000):%Y-%m-%dT%H:%M:%S}.000Z".encode()  # noqa: DTZ006


def build_service(n: int) -> RecipientService:
    service = Service(seed=1)
    service.seed_recipients(min(n, VARIED), seed=7)
    world = service.find_or_create_tenant()
    varied = [views.build_recipient(world, each) for each in world.recipients.values()]
    first = _format_date("2020-01-01T00:00:00Z")
    made = RecipientService([], [])
    for number in range(n):
        row = varied[number % len(varied)]
        date = first + number * MILLISECONDS_APART
        shown = {
            **row,
            "id": f"R-{number:016d}",
            "status": "active",
            "updatedAt": _build_recipient_text(date).decode(),
        }
        made.dates.append(date)
        made.texts.append(encode_json(shown))
    return made


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
    its, growth = build_service(n), Growth(n)

    async def measure_queries(gateway: GatewayUnderTest, what: str, times: int = 1) -> Any:
        calls, began = its.calls, time.perf_counter()
        for _ in range(times):
            got = await gateway.request("GET", QUESTION)
            assert got.status == 200, got.text
        seconds = (time.perf_counter() - began) / times
        growth.costs[what] = Cost((its.calls - calls) / times, seconds)
        return got.body

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _start_gateway(folder, its, index=False) as gateway:
            read = await measure_queries(gateway, "read each time")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _start_gateway(folder, its, index=True) as gateway:
            kept = await measure_queries(gateway, "first, with an index")
            assert kept == read, "the index answers otherwise"
            await measure_queries(gateway, "warm", WARM)
            its.change(n // 3)
            await measure_queries(gateway, "one changed elsewhere")
            its.archived = RecipientService([], [])
            its.archive(its.find_match_from(n // 2))
            kept = await measure_queries(gateway, "one archived elsewhere")
            its.archived = None
            its.archive(its.find_match_from(n // 5))
            without = await measure_queries(gateway, "the same, where the archive is not listed")
            records = [one["meta"]["records"] for one in (read, kept, without)]
            assert records == [records[0] - gone for gone in range(3)], "who is archived is shown"
            await measure_queries(gateway, "warm again", WARM)
    return growth


def format_table(grown_: Sequence[Growth]) -> str:
    names = [*grown_[0].costs]
    rows = [["recipients", *names], ["---"] * (len(names) + 1)]
    for one in grown_:
        cells = [f"{cost.calls:g} ({_format_seconds(cost.seconds)})" for cost in one.costs.values()]
        rows.append([f"{one.recipients:,}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


async def run_bench(sizes: Sequence[int]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    done = []
    for size in sizes:
        print(f"{size:,} recipients", flush=True)
        done.append(await measure_size(size))
    print(
        f"\nCalls of the service for one question (and how long it took):\n\n{format_table(done)}"
    )
