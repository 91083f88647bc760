"""The writes page: in-doubt writes and superseded batches, each with the action to take."""

from __future__ import annotations

from aiohttp import web

from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.operator.in_doubt_writes import load_in_doubt_writes
from gateway.storage.abandoned import abandoned_batches

SHOWN = 100
"""Rows of each list; the commands list all."""


class WritesPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._store = parts.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        writes = await load_in_doubt_writes(self._store)
        batches = await abandoned_batches(self._store)
        return self._pages.page(
            request,
            "writes",
            writes=writes[:SHOWN],
            batches=batches[:SHOWN],
            counts={"writes": len(writes), "batches": len(batches)},
        )
