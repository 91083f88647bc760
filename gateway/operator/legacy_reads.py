"""Reads from the legacy service on the gateway's own behalf, within a share of the key's rate
limit.

The legacy service limits the requests per key and hour (legacy interface, section 8), and clients
need most of them. So these reads are counted over the last hour, across runs, and wait when the
share is used up.
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
"""How often a list is read from the beginning if it shrinks meanwhile."""

Told = Callable[[float], None]
"""Called with the seconds that a read has to wait."""


class NotRead(Exception):
    """The legacy service gave no usable answer. The message is one line."""


class Budget:
    """Limits requests in any hour to ``per_hour``. Counts by the minute, rounding usage up."""

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
        """Waits until one more request is within the budget, and counts it."""
        while (wait := self._wait()) > 0:
            self._told(wait)
            await self._sleep(wait)
        self.spent[int(self._now() // MINUTE)] += 1

    def _wait(self) -> float:
        now = self._now()
        for minute in [one for one in self.spent if (one + 1) * MINUTE + AN_HOUR <= now]:
            del self.spent[minute]
        # By minutes: the oldest minute counts until all of it is more than an hour ago.
        if self.spent.total() < self._per_hour:
            return 0
        return (min(self.spent) + 1) * MINUTE + AN_HOUR - now


async def load_read_budget(
    ledger: Ledger, environment: str, name: str, per_hour: int, told: Told
) -> Budget:
    """The budget, less the requests of earlier runs in the last hour."""
    kept, _when = (await ledger.learned(environment)).get(_place(name), ({}, None))
    return Budget(per_hour, {int(minute): int(n) for minute, n in kept.items()}, told=told)


async def save_read_budget(ledger: Ledger, environment: str, name: str, budget: Budget) -> None:
    spent = {str(minute): number for minute, number in budget.spent.items()}
    await ledger.learn(environment, _place(name), spent)


def _place(name: str) -> str:
    return f"legacy reads of {name}"


class LegacyReads:
    """Reads the legacy service with one API key. ``request_count`` counts the requests sent."""

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
        """The body of a 200 answer, or None for 404. Retries, then raises LegacyReadFailed."""
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
            # Not an error: the object may have been deleted since it was listed.
            if status == 404:
                return None
            if status in (401, 403):
                raise NotRead(f"it refuses the API key (status {status})")
            # Everything else may be temporary, so it is retried.
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
                # Bounded, because the answer is held in memory.
                if len(data) > ANSWER_BYTES:
                    raise ResponseLost(f"an answer of more than {ANSWER_BYTES} bytes")
            return passed.status, passed.headers.get("Retry-After", ""), bytes(data)

    async def rows(self, path: str, name: str, **query: str) -> AsyncIterator[tuple[JSON, int]]:
        """Yields every row of a list once, with the number of rows that the service reports.

        Pages by the ``meta`` of each answer, because a service may return smaller pages than
        requested. If rows are deleted meanwhile, later rows move up and may be skipped, so the list
        is then read again for rows not seen yet.
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
            # Nothing was deleted meanwhile, so no row was skipped.
            if not has_shrunk:
                return

    async def _pages(
        self, path: str, name: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[JSON, Mapping[str, JSON]]]:
        """Reads a list from the beginning. Yields each page's answer and its rows by id."""
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
    """The rows of a page; null is an empty list. Raises LegacyReadFailed if the list is missing: a
    malformed answer must not look like an empty list.
    """
    rows = body.get(name, ...)
    if rows is None:
        return []
    if not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
        raise NotRead(f"{path} cannot be read: it answers without a list of {name}")
    if not all(SHAPE.fullmatch(str(one.get("id"))) for one in rows):
        raise NotRead(f"{path} cannot be read: one of its {name} has no valid id")
    return rows


def _object(data: bytes) -> JSON:
    try:
        body = json_codec.read(data)
    except json_codec.Unreadable:
        return None
    return body if isinstance(body, dict) and body.get("ok") is not False else None
