"""Reads from the legacy service for imports, within a share of the key's rate limit.

The legacy service limits the requests per key and hour (legacy interface, section 8), and clients
need most of them. So these reads have a share of it, and wait when that is used up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlencode

from multidict import CIMultiDict

from gateway.payloads import json_codec
from gateway.upstream.http_connection import USER_AGENT, ResponseLost
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest
from mappings.effects import JSON
from mappings.failures import Unreachable
from mappings.ids import LEGACY_ID_PATTERN
from mappings.paging import compute_last_page_to_read, parse_record_count

HOUR_SECONDS = 3600
PAGE_SIZE = 100
MAX_ATTEMPTS = 4
MAX_WAIT_SECONDS = 3600
MAX_LIST_PASSES = 3
"""How often a list is read from the beginning if it shrinks meanwhile."""


class LegacyReadFailed(Exception):
    """The legacy service gave no usable answer. The message is one line."""


class ReadBudget:
    """Paces requests: at most ``per_hour`` in any hour, a tenth of them without a wait.

    A token bucket: a run that follows another at once needs to know nothing of it.
    """

    def __init__(self, per_hour: int) -> None:
        self._interval = HOUR_SECONDS / (0.9 * per_hour)
        self._burst_seconds = per_hour / 10 * self._interval
        self._due_at = 0.0
        """When the next request keeps the pace."""

    async def wait_for_request(self) -> None:
        """Waits until one more request is within the budget."""
        now = time.monotonic()
        self._due_at = max(self._due_at, now - self._burst_seconds) + self._interval
        if self._due_at > now:
            await asyncio.sleep(self._due_at - now)


class LegacyReader:
    """Reads the legacy service with one API key. ``request_count`` counts the requests sent."""

    def __init__(
        self, passthrough: PassthroughClient, environment: str, api_key: str, budget: ReadBudget
    ) -> None:
        self._passthrough = passthrough
        self._environment = environment
        self._headers = CIMultiDict({"X-API-Key": api_key, "User-Agent": USER_AGENT})
        self._headers["Accept"] = "application/json"
        self._budget = budget
        self.request_count = 0

    async def fetch_object(self, path: str, query: Mapping[str, str] | None = None) -> JSON:
        """Returns the body of a 200 answer, None for 404. Raises LegacyReadFailed after retries."""
        target = f"/v1{path}" + (f"?{urlencode(query)}" if query else "")
        reason = ""
        for pause in (0.5 * 2**number for number in range(MAX_ATTEMPTS)):
            await self._budget.wait_for_request()
            self.request_count += 1
            headers = self._headers.copy()
            request = PassthroughRequest(
                self._environment, "GET", target, headers, None, is_write=False
            )
            try:
                async with self._passthrough.send(request) as response:
                    data, status = await response.read_body(), response.status
            except (Unreachable, ResponseLost) as lost:
                reason = str(lost)
                await asyncio.sleep(pause)
                continue
            body = json_codec.loads_object(data) or {}
            if status == 200 and body and body.get("ok") is not False:
                return body
            # Not a failure: the object may have been deleted since it was listed. A 404 without the
            # service's error, as of a proxy's page, does not say so.
            if status == 404 and body.get("errors"):
                return None
            if status in (401, 403):
                raise LegacyReadFailed(f"it refuses the API key (status {status})")
            # Everything else may be temporary, so it is retried.
            reason = f"status {status}"
            retry_after = response.headers.get("Retry-After", "")
            wait = int(retry_after) if status == 429 and retry_after.isdecimal() else pause
            await asyncio.sleep(min(wait, MAX_WAIT_SECONDS))
        raise LegacyReadFailed(f"{path} cannot be read: {reason}")

    async def iter_rows(self, path: str, name: str, **query: str) -> AsyncIterator[JSON]:
        """Yields every row of a list once.

        Pages by the ``meta`` of each answer, because a service may return smaller pages than
        requested. If rows are deleted meanwhile, later rows move up and may be skipped, so the list
        is then read again for rows not seen yet.
        """
        seen_ids: set[str] = set()
        for _ in range(MAX_LIST_PASSES):
            records, has_shrunk = 0, False
            async for body, rows in self._iter_pages(path, name, query):
                before, records = records, parse_record_count(body, len(seen_ids | rows.keys()))
                has_shrunk = has_shrunk or records < before
                for id_ in [row_id for row_id in rows if row_id not in seen_ids]:  # in their order
                    seen_ids.add(id_)
                    yield rows[id_]
            # Nothing was deleted meanwhile, so no row was skipped.
            if not has_shrunk:
                return

    async def _iter_pages(
        self, path: str, name: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[JSON, Mapping[str, JSON]]]:
        """Reads a list from the beginning. Yields each page's answer and its rows by id."""
        read_ids: set[str] = set()
        number, pages = 1, 1
        while number <= pages:
            page_query = {**query, "page": str(number), "pageSize": str(PAGE_SIZE)}
            body = await self.fetch_object(path, page_query)
            if body is None:
                raise LegacyReadFailed(f"{path} cannot be read: status 404")
            rows = {str(row["id"]): row for row in _require_rows(body, path, name)}
            yield body, rows
            pages = compute_last_page_to_read(body, number, is_new=bool(rows.keys() - read_ids))
            read_ids |= rows.keys()
            number += 1


def _require_rows(body: Mapping[str, JSON], path: str, name: str) -> list[Mapping[str, JSON]]:
    """Returns the rows of a page; null is an empty list.

    Raises LegacyReadFailed if the list is missing, so that a malformed answer is not an empty one.
    """
    rows = body.get(name, ...)
    if rows is None:
        return []
    if not isinstance(rows, list):
        raise LegacyReadFailed(f"{path} cannot be read: it answers without a list of {name}")
    ids = [row.get("id") if isinstance(row, dict) else None for row in rows]
    if not all(LEGACY_ID_PATTERN.fullmatch(str(id_)) for id_ in ids):
        raise LegacyReadFailed(f"{path} cannot be read: one of its {name} has no valid id")
    return rows
