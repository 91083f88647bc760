"""The limits page: current use of each key's rate limit."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.auth.key_rows import ListedKey, load_listed_keys
from gateway.console.dependencies import ConsoleDependencies
from gateway.console.pages import Pages
from gateway.storage import Tenant

NEAR_LIMIT_RATIO = 0.8
"""A key is near its limit from this share on."""

MAX_ROWS = 200

SIGNED_REQUESTS = "signed requests"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Current use of a rate limit. ``used`` is None if the counter is unavailable."""

    tenant: Tenant
    name: str
    limit: int
    used: int | None

    @property
    def ratio(self) -> float:
        return (self.used or 0) / self.limit if self.limit else 0.0

    @property
    def level(self) -> str:
        if self.used is not None and self.used >= self.limit:
            return "reached"
        return "near" if self.ratio >= NEAR_LIMIT_RATIO else "ok"


async def load_limit_usage(dependencies: ConsoleDependencies) -> list[LimitUse]:
    """Loads the use of all active keys, and of each merchant's signed requests if there are any.

    The highest share comes first. Raises StoreUnavailable.
    """
    keys = [key for key in await load_listed_keys(dependencies.store) if key.revoked_at is None]
    tenants = sorted({key.tenant for key in keys})
    # The names that the legacy and the signed interface count by.
    counter_names = [
        *(key.id for key in keys),
        *(f"signed {signed_tenant}" for signed_tenant in tenants),
    ]
    counts = await dependencies.limits.list_window_request_counts(counter_names)
    default_limit = dependencies.settings.limits.requests_per_hour
    # Without counts the backend cannot be reached: unknown, which is not zero.
    key_counts = counts[: len(keys)] if counts else [None] * len(keys)
    uses = [
        _build_limit_use(key, default_limit, used)
        for key, used in zip(keys, key_counts, strict=True)
    ]
    signed = zip(tenants, counts[len(keys) :] if counts else [], strict=False)
    uses += [
        LimitUse(tenant, SIGNED_REQUESTS, default_limit, used) for tenant, used in signed if used
    ]
    return sorted(uses, key=lambda use: (-use.ratio, use.tenant, use.name))


def _build_limit_use(key: ListedKey, default_limit: int, used: int | None) -> LimitUse:
    return LimitUse(key.tenant, key.name, key.requests_per_hour or default_limit, used)


class LimitsPage:
    def __init__(self, dependencies: ConsoleDependencies, pages: Pages) -> None:
        self._dependencies = dependencies
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        uses = await load_limit_usage(self._dependencies)
        return self._pages.render_page(
            request,
            "limits",
            uses=uses[:MAX_ROWS],
            more=len(uses) - MAX_ROWS,
            fault=await self._dependencies.limits.find_limiter_problem(),
            is_known=all(use.used is not None for use in uses),
            levels={
                level: sum(use.level == level for use in uses) for level in ("reached", "near")
            },
            near=int(NEAR_LIMIT_RATIO * 100),
        )
