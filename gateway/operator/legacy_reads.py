"""Reads of the legacy interface for the gateway itself, within a share of what its key may ask.

The legacy service lets so many requests through in an hour for each key (legacy interface, section
8), and clients need them. So what is asked here is counted over an hour, also from one run to the
next, and waits where it would be too much.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import urlencode

from multidict import CIMultiDict

from gateway.payloads import json_codec
from gateway.storage import Ledger
from gateway.upstream.client import ANSWER_BYTES, USER_AGENT
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest
from gateway.upstream.send_attempt import ResponseLost
from mappings.grammar import JSON, Unreachable
from mappings.ids import SHAPE
from mappings.paging import count_pages_to_read, parse_count

AN_HOUR = 3600
MINUTE = 60
PAGE = 100
TRIES = 4
LONGEST_WAIT = 3600
READINGS = 3
"""Of a list that grows shorter while it is read."""

Told = Callable[[float], None]
"""Told of how many seconds are waited."""


class NotRead(Exception):
    """The legacy service gave no answer that can be used; why, in one line."""


class Budget:
    """At most so many requests in any hour; counted by minutes, and rather too many than too few."""

    def __init__(
        self,
        per_hour: int,
        spent: Mapping[int, int],
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        told: Told = lambda _seconds: None,
    ) -> None:
        self._per_hour = per_hour
        self.spent = Counter(spent)
        self._now = now
        self._sleep = sleep
        self._told = told

    async def spend(self) -> None:
        """Waits until one request more is within the share."""
        while (wait := self._wait()) > 0:
            self._told(wait)
            await self._sleep(wait)
        self.spent[int(self._now() // MINUTE)] += 1

    def _wait(self) -> float:
        now = self._now()
        for minute in [one for one in self.spent if (one + 1) * MINUTE + AN_HOUR <= now]:
            del self.spent[minute]
        if self.spent.total() < self._per_hour:
            return 0
        return (min(self.spent) + 1) * MINUTE + AN_HOUR - now


async def load_read_budget(
    ledger: Ledger, environment: str, name: str, per_hour: int, told: Told
) -> Budget:
    """With what earlier runs have spent."""
    kept, _when = (await ledger.learned(environment)).get(_place(name), ({}, None))
    return Budget(per_hour, {int(minute): int(n) for minute, n in kept.items()}, told=told)


async def save_read_budget(ledger: Ledger, environment: str, name: str, budget: Budget) -> None:
    spent = {str(minute): number for minute, number in budget.spent.items()}
    await ledger.learn(environment, _place(name), spent)


def _place(name: str) -> str:
    return f"legacy reads of {name}"


class LegacyReads:
    """``asked`` counts the requests that were sent."""

    def __init__(
        self, passing: PassthroughClient, environment: str, api_key: str, budget: Budget
    ) -> None:
        self._passing = passing
        self._environment = environment
        self._headers = CIMultiDict({"X-API-Key": api_key, "User-Agent": USER_AGENT})
        self._headers["Accept"] = "application/json"
        self._budget = budget
        self.asked = 0

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JSON:
        """The body of a good answer, None where there is no such object; raises NotRead."""
        target = f"/v1{path}" + (f"?{urlencode(query)}" if query else "")
        why = ""
        for pause in (0.5 * 2**number for number in range(TRIES)):
            await self._budget.spend()
            self.asked += 1
            try:
                status, retry_after, data = await self._sent(target)
            except (Unreachable, ResponseLost) as lost:
                why = str(lost)
                await asyncio.sleep(pause)
                continue
            if status == 200 and (body := _object(data)) is not None:
                return body
            if status == 404:
                return None
            if status in (401, 403):
                raise NotRead(f"it refuses the API key (status {status})")
            why = f"status {status}"
            wait = int(retry_after) if status == 429 and retry_after.isdecimal() else pause
            await asyncio.sleep(min(wait, LONGEST_WAIT))
        raise NotRead(f"{path} cannot be read: {why}")

    async def _sent(self, target: str) -> tuple[int, str, bytes]:
        headers = self._headers.copy()
        passage = PassthroughRequest(self._environment, "GET", target, headers, None, write=False)
        async with self._passing.sent(passage) as passed:
            data = bytearray()
            async for part in passed.parts():
                data += part
                if len(data) > ANSWER_BYTES:
                    raise ResponseLost(f"an answer of more than {ANSWER_BYTES} bytes")
            return passed.status, passed.headers.get("Retry-After", ""), bytes(data)

    async def rows(self, path: str, name: str, **query: str) -> AsyncIterator[tuple[JSON, int]]:
        """Every row of a list, each once, and how many the service says there are.

        By the ``meta`` of the answers, since a service may give smaller pages than were asked for.
        Where rows were deleted meanwhile those behind them moved up, perhaps past the page that is
        read next: then the list is read once more for what was not seen.
        """
        seen: set[str] = set()
        for _ in range(READINGS):
            records, has_shrunk = 0, False
            async for body, rows in self._pages(path, name, query):
                before, records = records, _records(body, len(seen | rows.keys()))
                has_shrunk = has_shrunk or records < before
                for id_ in [one for one in rows if one not in seen]:  # in their order
                    seen.add(id_)
                    yield rows[id_], records
            if not has_shrunk:
                return

    async def _pages(
        self, path: str, name: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[JSON, Mapping[str, JSON]]]:
        """A list from its beginning: each page's answer, and its rows by id."""
        read: set[str] = set()
        number, pages = 1, 1
        while number <= pages:
            paged = {**query, "page": str(number), "pageSize": str(PAGE)}
            body = await self.get(path, paged)
            if body is None:
                return
            rows = {str(one["id"]): one for one in _rows(body, path, name)}
            yield body, rows
            pages = count_pages_to_read(body, number, is_new=bool(rows.keys() - read))
            read |= rows.keys()
            number += 1


def _records(body: Mapping[str, JSON], default: int) -> int:
    meta = body.get("meta")
    return parse_count(meta.get("records") if isinstance(meta, dict) else None, default)


def _rows(body: Mapping[str, JSON], path: str, name: str) -> list[Mapping[str, JSON]]:
    """Raises NotRead where there is no list, which is not to have none; null stands for none."""
    rows = body.get(name, ...)
    if rows is None:
        return []
    if not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
        raise NotRead(f"{path} cannot be read: it answers without a list of {name}")
    if not all(SHAPE.fullmatch(str(one.get("id"))) for one in rows):
        raise NotRead(f"{path} cannot be read: one of its {name} has no id, or one that is none")
    return rows


def _object(data: bytes) -> JSON:
    try:
        body = json_codec.read(data)
    except json_codec.Unreadable:
        return None
    return body if isinstance(body, dict) and body.get("ok") is not False else None
