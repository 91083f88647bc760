"""The comparison pages: keys in mode `compare`, their readiness and differences."""

from __future__ import annotations

from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.readiness import Difference, KeyReadiness, load_cutover_readiness
from gateway.storage.difference_rows import Tally

MAX_KEYS = 200
"""Keys on the page; `compare report` lists all."""


class ComparisonsPage(Page):
    """Lists the compared keys."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        standings = await load_cutover_readiness(self._store)
        # Keys that need attention come first.
        standings.sort(
            key=lambda each: (each.is_ready, -each.open_difference_count, each.owner, each.key)
        )
        return self._pages.render_page(
            request, "comparisons", standings=standings[:MAX_KEYS], more=len(standings) - MAX_KEYS
        )


class ComparisonPage(Page):
    """Shows one key, by its unique name."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        standings = await load_cutover_readiness(self._store, request.query.get("key", ""))
        if not standings:
            return self._pages.render_page(request, "not_found", 404)
        return self._pages.render_page(
            request,
            "comparison",
            standing=standings[0],
            operations=_sort_operations(standings[0]),
        )


def _sort_operations(standing: KeyReadiness) -> list[tuple[str, Tally, list[Difference]]]:
    """Returns each operation with its differences, most differences first."""
    differences = sorted(
        standing.differences, key=lambda each: (each.why is not None, -each.answers)
    )
    return [
        (name, tally, [each for each in differences if each.operation == name])
        for name, tally in sorted(
            standing.operations.items(),
            key=lambda item: (-item[1].different, -item[1].compared, item[0]),
        )
    ]
