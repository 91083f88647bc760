"""The comparison pages: keys in mode `compare`, their readiness and differences."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.console.dependencies import ConsoleDependencies
from gateway.console.pages import Pages
from gateway.operator.readiness import Difference, KeyReadiness, load_cutover_readiness

MAX_KEYS = 200
"""Keys on the page; `compare report` lists all."""


@dataclass(frozen=True, slots=True)
class OperationComparison:
    """Counts and differences of an operation of a key."""

    operation: str
    compared: int
    different: int
    failed: int
    dropped: int
    differences: list[Difference]


class ComparisonsPage:
    """Lists the compared keys."""

    def __init__(self, dependencies: ConsoleDependencies, pages: Pages) -> None:
        self._store = dependencies.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        standings = await load_cutover_readiness(self._store)
        # Keys that need attention come first.
        standings.sort(
            key=lambda standing: (
                standing.is_ready,
                -standing.open_difference_count,
                standing.owner,
                standing.key,
            )
        )
        return self._pages.render_page(
            request, "comparisons", standings=standings[:MAX_KEYS], more=len(standings) - MAX_KEYS
        )


class ComparisonPage:
    """Shows one key, by its unique name."""

    def __init__(self, dependencies: ConsoleDependencies, pages: Pages) -> None:
        self._store = dependencies.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        standings = await load_cutover_readiness(self._store, request.query.get("key", ""))
        if not standings:
            return self._pages.render_page(request, "not_found", 404)
        return self._pages.render_page(
            request,
            "comparison",
            standing=standings[0],
            operations=_build_operation_comparisons(standings[0]),
        )


def _build_operation_comparisons(standing: KeyReadiness) -> list[OperationComparison]:
    """Builds the operations of a key, most differences first."""
    operations = [
        OperationComparison(
            name,
            tally.compared,
            tally.different,
            tally.failed,
            tally.dropped,
            sorted(
                (difference for difference in standing.differences if difference.operation == name),
                key=lambda difference: (difference.why is not None, -difference.answers),
            ),
        )
        for name, tally in standing.operations.items()
    ]
    return sorted(
        operations,
        key=lambda operation: (-operation.different, -operation.compared, operation.operation),
    )
