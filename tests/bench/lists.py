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
from gateway.simulator.wire import write_json
from tests.house import House, open_house

SIZES = (1_000, 10_000, 100_000)
SEARCHED = "an"
QUESTION = f"/v1/recipients?search={SEARCHED}&orderBy=city&sortBy=asc"
WARM = 5
VARIED = 2_000
"""Number of recipients that differ in more than ids, name suffixes and dates."""

MILLISECONDS_APART = 60_000
ACTIVE = b'"status":"active"'


@dataclass(slots=True)
class Listed:
    """Recipients by update date: the dates, in milliseconds, and the texts in the same order.

    ``archived`` has those that were archived, where they are listed for that status.
    """

    dates: list[int]
    texts: list[bytes]
    archived: Listed | None = None
    calls: int = 0
    rows: int = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.calls += 1
        query = dict(parse_qsl(request.raw_path.partition("?")[2]))
        its = (self.archived or Listed([], [])) if query.get("status") == "archived" else self
        begin = bisect_left(its.dates, _date(query.get("startDate", "0001-01-01T00:00:00Z")))
        end = bisect_right(its.dates, _date(query.get("endDate", "9999-01-01T00:00:00Z")))
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

    def found_from(self, place: int) -> int:
        """The first match from an offset on."""
        rows = (
            (number, json.loads(self.texts[number])) for number in range(place, len(self.texts))
        )
        return next(number for number, row in rows if SEARCHED in row["name"].casefold())

    def archive(self, place: int) -> None:
        """Sets a status as the simulator does: the recipient is then listed under it only, with a new date."""
        self._move(place, self.archived or Listed([], []), b'"archived"')

    def _move(self, place: int, into: Listed, status: bytes) -> None:
        text, old = self.texts.pop(place), self.dates.pop(place)
        new = max([self.dates[-1], *into.dates[-1:]]) + MILLISECONDS_APART
        text = text.replace(_text(old), _text(new))
        into.dates.append(new)
        into.texts.append(text.replace(ACTIVE, b'"status":' + status) if status else text)


def _date(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _text(date: int) -> bytes:
    return f"{datetime.fromtimestamp(date / 1000):%Y-%m-%dT%H:%M:%S}.000Z".encode()  # noqa: DTZ006


def listed(n: int) -> Listed:
    service = Service(seed=1)
    service.seed_recipients(min(n, VARIED), seed=7)
    world = service.world()
    varied = [views.recipient(world, each) for each in world.recipients.values()]
    first = _date("2020-01-01T00:00:00Z")
    made = Listed([], [])
    for number in range(n):
        row = varied[number % len(varied)]
        date = first + number * MILLISECONDS_APART
        shown = {
            **row,
            "id": f"R-{number:016d}",
            "status": "active",
            "updatedAt": _text(date).decode(),
        }
        made.dates.append(date)
        made.texts.append(write_json(shown))
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
async def _house(folder: Path, its: Listed, *, index: bool) -> AsyncIterator[House]:
    runner = web.ServerRunner(web.Server(its.handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with open_house(folder, url, lists={"index": index}) as house:
            yield house
    finally:
        await runner.cleanup()


async def grown(n: int) -> Growth:
    its, growth = listed(n), Growth(n)

    async def ask(house: House, what: str, times: int = 1) -> Any:
        calls, began = its.calls, time.perf_counter()
        for _ in range(times):
            got = await house.ask("GET", QUESTION)
            assert got.status == 200, got.text
        seconds = (time.perf_counter() - began) / times
        growth.costs[what] = Cost((its.calls - calls) / times, seconds)
        return got.body

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _house(folder, its, index=False) as house:
            read = await ask(house, "read each time")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _house(folder, its, index=True) as house:
            kept = await ask(house, "first, with an index")
            assert kept == read, "the index answers otherwise"
            await ask(house, "warm", WARM)
            its.change(n // 3)
            await ask(house, "one changed elsewhere")
            its.archived = Listed([], [])
            its.archive(its.found_from(n // 2))
            kept = await ask(house, "one archived elsewhere")
            its.archived = None
            its.archive(its.found_from(n // 5))
            without = await ask(house, "the same, where the archive is not listed")
            records = [one["meta"]["records"] for one in (read, kept, without)]
            assert records == [records[0] - gone for gone in range(3)], "who is archived is shown"
            await ask(house, "warm again", WARM)
    return growth


def table(grown_: Sequence[Growth]) -> str:
    names = [*grown_[0].costs]
    rows = [["recipients", *names], ["---"] * (len(names) + 1)]
    for one in grown_:
        cells = [f"{cost.calls:g} ({_took(cost.seconds)})" for cost in one.costs.values()]
        rows.append([f"{one.recipients:,}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


async def bench(sizes: Sequence[int]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    done = []
    for size in sizes:
        print(f"{size:,} recipients", flush=True)
        done.append(await grown(size))
    print(f"\nCalls of the service for one question (and how long it took):\n\n{table(done)}")
