"""The limits page: current use of each key's rate limit."""

from __future__ import annotations

from collections import Counter

from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.limit_usage import NEAR_LIMIT_RATIO

MAX_ROWS = 200


class LimitsPage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        uses = await self._dependencies.load_limit_usage()
        return self._pages.render_page(
            request,
            "limits",
            uses=uses[:MAX_ROWS],
            more=len(uses) - MAX_ROWS,
            fault=await self._dependencies.limits.find_limiter_problem(),
            is_known=all(use.used is not None for use in uses),
            levels=Counter(use.level for use in uses),
            near=int(NEAR_LIMIT_RATIO * 100),
        )
