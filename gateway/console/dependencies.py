"""Dependencies of the pages, and lists of which each worker of a gateway has a part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from gateway.admin.port import Check
from gateway.admin.worker_pages import fetch_from_each_worker
from gateway.admission.limits import RateLimiter
from gateway.config.settings import Settings
from gateway.operator.usage import LimitUse, load_limit_usage
from gateway.reads.recipient_cache import RecipientCaches
from gateway.storage import Store
from gateway.upstream.clock import ServiceClock
from gateway.upstream.service_problems import ServiceProblems

Item = TypeVar("Item")

WORKER_SECONDS = 5
"""Timeout for another worker; longer than its checks of `/readyz` take."""


@dataclass(frozen=True, slots=True)
class ConsoleDependencies:
    """Dependencies of the pages. ``checks`` are those of `/readyz`.

    ``admin_socket``: of a worker, the socket on which its parent passes requests on.
    """

    settings: Settings
    store: Store
    limits: RateLimiter
    clock: ServiceClock
    checks: Mapping[str, Check]
    service_problems: ServiceProblems
    indexes: RecipientCaches
    admin_socket: Path | None = None

    async def load_limit_usage(self) -> list[LimitUse]:
        """Loads the use of all rate limits; raises StoreUnavailable."""
        return await load_limit_usage(
            self.store, self.limits, self.settings.limits.requests_per_hour
        )

    async def fetch_from_other_workers(self, path: str) -> list[bytes]:
        """Fetches a page from each other worker of this gateway that answers."""
        if self.admin_socket is None:
            return []
        # The workers of one gateway have their sockets in one folder.
        others = [
            socket for socket in self.admin_socket.parent.iterdir() if socket != self.admin_socket
        ]
        pages = await fetch_from_each_worker(others, path, WORKER_SECONDS)
        return [page.body for page in pages if page]


class WorkerList(Generic[Item]):
    """A list of which each worker has a part, which it serves to the other workers at a path."""

    def __init__(
        self,
        dependencies: ConsoleDependencies,
        path: str,
        load_own: Callable[[], list[Item]],
        item_type: type[Item],
    ) -> None:
        self._fetch_from_other_workers = dependencies.fetch_from_other_workers
        self._path = path
        self._load_own = load_own
        self._decoder = msgspec.json.Decoder(list[item_type])  # type: ignore[valid-type]

    async def load(self) -> list[Item]:
        items = self._load_own()
        for body in await self._fetch_from_other_workers(self._path):
            items += self._decoder.decode(body)
        return items

    def build_route(self) -> web.RouteDef:
        async def serve_own(_request: web.Request) -> web.StreamResponse:
            body = msgspec.json.encode(self._load_own())
            return web.Response(body=body, content_type="application/json")

        return web.get(self._path, serve_own)
