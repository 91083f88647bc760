"""Pages that list what the commands list: rate limits, writes in doubt, and compared keys."""

from collections import Counter

from aiohttp import web

from gateway.console.pages import Pages
from gateway.operator.in_doubt_writes import advise_to_wait, load_in_doubt_writes
from gateway.operator.readiness import load_cutover_readiness
from gateway.operator.usage import NEAR_LIMIT_RATIO
from gateway.storage.superseded_batches import list_superseded_batches

MAX_KEYS = 200
MAX_WRITES = 100
"""Rows of each list; the commands list all."""


async def show_limits(pages: Pages, request: web.Request) -> web.StreamResponse:
    uses = await pages.dependencies.load_limit_usage()
    return pages.render_page(
        request,
        "limits",
        uses=uses[:MAX_KEYS],
        more=len(uses) - MAX_KEYS,
        fault=await pages.dependencies.limits.find_limiter_problem(),
        is_known=all(use.used is not None for use in uses),
        levels=Counter(use.level for use in uses),
        near=int(NEAR_LIMIT_RATIO * 100),
    )


async def show_writes(pages: Pages, request: web.Request) -> web.StreamResponse:
    """Lists in-doubt writes and superseded batches, each with the action to take."""
    writes = await load_in_doubt_writes(pages.store)
    if writes:
        writes = advise_to_wait(writes, await pages.health.find_problems())
    batches = await list_superseded_batches(pages.store)
    return pages.render_page(
        request,
        "writes",
        writes=writes[:MAX_WRITES],
        batches=batches[:MAX_WRITES],
        # Of all rows, not only of those that are shown.
        counts={"writes": len(writes), "batches": len(batches)},
    )


async def show_comparisons(pages: Pages, request: web.Request) -> web.StreamResponse:
    standings = await load_cutover_readiness(pages.store)
    # Keys that need attention come first.
    standings.sort(
        key=lambda each: (each.is_ready, -each.open_difference_count, each.owner, each.key)
    )
    return pages.render_page(
        request, "comparisons", standings=standings[:MAX_KEYS], more=len(standings) - MAX_KEYS
    )
