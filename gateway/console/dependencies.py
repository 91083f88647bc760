"""Dependencies of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.admin.port import Check
from gateway.admission.limits import RateLimiter
from gateway.config.settings import Settings
from gateway.http.progress import LargeRequestsInProgress
from gateway.reads.recipient_cache import RecipientCaches
from gateway.storage import Store
from gateway.upstream.clock import ServiceClock
from gateway.writes.instance_leases import Heartbeats


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
    requests_in_progress: LargeRequestsInProgress
    heartbeats: Heartbeats
    indexes: RecipientCaches
    admin_socket: Path | None = None

    @property
    def has_parent(self) -> bool:
        return self.admin_socket is not None
