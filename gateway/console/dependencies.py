"""Dependencies of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admin.port import Check
from gateway.admission.limits import Limits
from gateway.config.settings import Settings
from gateway.http.progress import RequestsInProgress
from gateway.reads.index import Indexes
from gateway.storage import Store
from gateway.upstream.clock import ServiceClock
from gateway.writes.instances import Heartbeats


@dataclass(frozen=True, slots=True)
class ConsoleDependencies:
    """Dependencies of the pages. ``checks`` are those of `/readyz`.

    ``has_parent``: this is a worker, and its parent passes the client's address on.
    """

    settings: Settings
    store: Store
    limits: Limits
    clock: ServiceClock
    checks: Mapping[str, Check]
    requests_in_progress: RequestsInProgress
    heartbeats: Heartbeats
    indexes: Indexes
    has_parent: bool = False
