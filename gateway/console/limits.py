"""The limits page: current use of each key's rate limit."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.auth.key_rows import ListedKey, load_listed_keys
from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.storage import Tenant

NEAR = 0.8
"""A key is near its limit from this share on."""

SHOWN = 200

SIGNED = "signed requests"


@dataclass(frozen=True, slots=True)
class Use:
    """Current use of a rate limit. ``used`` is None if the counter is unavailable."""

    owner: Tenant
    name: str
    limit: int
    used: int | None

    @property
    def part(self) -> float:
        return (self.used or 0) / self.limit if self.limit else 0.0

    @property
    def level(self) -> str:
        if self.used is not None and self.used >= self.limit:
            return "reached"
        return "near" if self.part >= NEAR else "ok"


async def load_limit_usage(parts: Parts) -> list[Use]:
    """Loads the use of all active keys, and of each merchant's signed requests if there are any.

    The highest share comes first. Raises StoreUnavailable.
    """
    keys = [one for one in await load_listed_keys(parts.store) if one.revoked_at is None]
    owners = sorted({one.owner for one in keys})
    # The names that the legacy and the signed interface count by.
    names = [*(one.id for one in keys), *(f"signed {one}" for one in owners)]
    counted = await parts.limits.counted(names)
    most = parts.settings.limits.requests_per_hour
    of_keys = counted[: len(keys)] if counted else [None] * len(keys)
    found = [_use(one, most, used) for one, used in zip(keys, of_keys, strict=True)]
    signed = zip(owners, counted[len(keys) :] if counted else [], strict=False)
    found += [Use(owner, SIGNED, most, used) for owner, used in signed if used]
    return sorted(found, key=lambda one: (-one.part, one.owner, one.name))


def _use(key: ListedKey, most: int, used: int | None) -> Use:
    return Use(key.owner, key.name, key.requests_per_hour or most, used)


class LimitsPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        found = await load_limit_usage(self._parts)
        return self._pages.page(
            request,
            "limits",
            uses=found[:SHOWN],
            more=len(found) - SHOWN,
            fault=await self._parts.limits.fault(),
            is_known=all(one.used is not None for one in found),
            levels={
                level: sum(one.level == level for one in found) for level in ("reached", "near")
            },
            near=int(NEAR * 100),
        )
