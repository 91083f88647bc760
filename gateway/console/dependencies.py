"""Dependencies of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    ``has_parent``: this is a worker, and its parent passes the client's address on.
    """

    settings: Settings
    store: Store
    limits: RateLimiter
    clock: ServiceClock
    checks: Mapping[str, Check]
    requests_in_progress: LargeRequestsInProgress
    heartbeats: Heartbeats
    indexes: RecipientCaches
    has_parent: bool = False
