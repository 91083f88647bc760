"""The writes page: in-doubt writes and superseded batches, each with the action to take."""

from __future__ import annotations

from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.in_doubt_writes import advise_to_wait, load_in_doubt_writes
from gateway.storage.superseded_batches import list_superseded_batches

MAX_ROWS = 100
"""Rows of each list; the commands list all."""


class WritesPage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        writes = await load_in_doubt_writes(self._store)
        if writes:
            writes = advise_to_wait(writes, await self._health.find_problems())
        batches = await list_superseded_batches(self._store)
        return self._pages.render_page(
            request,
            "writes",
            writes=writes[:MAX_ROWS],
            batches=batches[:MAX_ROWS],
            # Of all rows, not only of those that are shown.
            counts={"writes": len(writes), "batches": len(batches)},
        )
