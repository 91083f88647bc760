"""The comparison pages: keys in mode `compare`, their readiness and differences."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.operator.readiness import Difference, Standing, load_readiness

SHOWN = 200
"""Keys on the page; `compare report` lists all."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Counts and differences of an operation of a key."""

    operation: str
    compared: int
    different: int
    failed: int
    dropped: int
    differences: list[Difference]


class ComparisonsPage:
    """Lists the compared keys."""

    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._store = parts.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        found = await load_readiness(self._store)
        found.sort(key=lambda one: (one.is_ready, -one.unexplained, one.owner, one.key))
        return self._pages.page(
            request, "comparisons", standings=found[:SHOWN], more=len(found) - SHOWN
        )


class ComparisonPage:
    """Shows one key, by its unique name."""

    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._store = parts.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        found = await load_readiness(self._store, request.query.get("key", ""))
        if not found:
            return self._pages.page(request, "not_found", 404)
        return self._pages.page(
            request, "comparison", standing=found[0], operations=_operations(found[0])
        )


def _operations(standing: Standing) -> list[Compared]:
    """Builds the operations of a key, most differences first."""
    found = [
        Compared(
            name,
            tally.compared,
            tally.different,
            tally.failed,
            tally.dropped,
            sorted(
                (one for one in standing.differences if one.operation == name),
                key=lambda one: (one.why is not None, -one.answers),
            ),
        )
        for name, tally in standing.operations.items()
    ]
    return sorted(found, key=lambda one: (-one.different, -one.compared, one.operation))
