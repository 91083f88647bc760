"""The writes page: in-doubt writes and superseded batches, each with the action to take."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.admin.port import find_readiness_problem
from gateway.console.dependencies import ConsoleDependencies
from gateway.console.pages import Pages
from gateway.operator.in_doubt_writes import advise_to_wait, load_in_doubt_writes
from gateway.storage.superseded_batches import list_superseded_batches

MAX_ROWS = 100
"""Rows of each list; the commands list all."""


class WritesPage:
    def __init__(self, dependencies: ConsoleDependencies, pages: Pages) -> None:
        self._store = dependencies.store
        self._checks = dependencies.checks
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        writes = await load_in_doubt_writes(self._store)
        if writes:
            writes = advise_to_wait(writes, await self._find_unavailable_environments())
        batches = await list_superseded_batches(self._store)
        return self._pages.render_page(
            request,
            "writes",
            writes=writes[:MAX_ROWS],
            batches=batches[:MAX_ROWS],
            # Of all rows, not only of those that are shown.
            counts={"writes": len(writes), "batches": len(batches)},
        )

    async def _find_unavailable_environments(self) -> set[str]:
        """Returns the environments whose service is down or refuses the gateway."""
        checks = {
            name: check
            for name, check in self._checks.items()
            if name.startswith(("environments.", "service."))
        }
        problems = await asyncio.gather(*map(find_readiness_problem, checks.values()))
        return {
            name.partition(".")[2]
            for name, problem in zip(checks, problems, strict=True)
            if problem
        }
