"""The service page: clock, signature form and optional endpoints of each environment, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.reads.index import Figures
from gateway.storage import Ledger
from gateway.upstream.clock import NOTEWORTHY
from gateway.upstream.optional_endpoints import describe_endpoint
from gateway.upstream.signed_target import NAME
from mappings.current import ENDPOINTS

if TYPE_CHECKING:
    from gateway.operator.doctor import Finding

log = structlog.get_logger()

STATES = ("error", "warning", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Operation:
    """An optional endpoint. ``present`` is None if no request has needed it yet."""

    name: str
    present: bool | None
    state: str
    found_at: datetime | None


@dataclass(frozen=True, slots=True)
class Service:
    """An environment's service.

    ``offset`` is how far its clock is ahead, in seconds; ``index`` the recipient cache, None if it is
    off. Both are this worker's own.
    """

    name: str
    base_url: str
    legacy_base_url: str
    offset: float
    is_off: bool
    form: str | None
    form_found_at: datetime | None
    form_is_set: bool
    operations: list[Operation]
    index: Figures | None


class ServicePage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, None)

    async def tried(self, request: web.Request, _fields: Mapping[str, str]) -> web.StreamResponse:
        """Runs the checks of `doctor`, which only read, and shows the results."""
        from gateway.operator.doctor import run_doctor  # noqa: PLC0415 - a start does not need its imports

        log.info("console_doctor_run", **{"client.address": self._pages.asked_from(request)})
        found = await run_doctor(self._parts.settings)
        found.sort(key=lambda one: STATES.index(one.state))
        return await self._page(request, found)

    async def _page(
        self, request: web.Request, findings: list[Finding] | None
    ) -> web.StreamResponse:
        ledger = Ledger(self._parts.store)
        names = self._parts.settings.environments.configured()
        services = [self._service(name, await ledger.learned(name)) for name in names]
        upstream = self._parts.settings.upstream
        return self._pages.page(
            request,
            "service",
            services=services,
            findings=findings,
            inferred=upstream.inferred_operations,
        )

    def _service(self, name: str, known: Mapping[str, tuple[Any, datetime]]) -> Service:
        its = self._parts.settings.environments.configured()[name]
        setting = self._parts.settings.upstream.signed_target
        form, found_at = known.get(NAME, (None, None))
        offset = self._parts.clock.offset(name)
        return Service(
            name,
            its.base_url,
            its.legacy_base_url,
            offset,
            abs(offset) >= NOTEWORTHY,
            form if setting == "auto" else setting,
            found_at if setting == "auto" else None,
            setting != "auto",
            [_operation(f"{one.method} {one.path}", known) for one in ENDPOINTS if one.inferred],
            self._parts.indexes.figures(name) if self._parts.settings.lists.index else None,
        )


def _operation(name: str, known: Mapping[str, tuple[Any, datetime]]) -> Operation:
    value, _ = known.get(f"inferred {name}", (None, None))
    if not isinstance(value, Mapping):
        return Operation(name, None, "not needed yet", None)
    at = value.get("at")
    found_at = datetime.fromtimestamp(at, UTC) if isinstance(at, int) else None
    return Operation(name, bool(value.get("present")), describe_endpoint(value), found_at)
