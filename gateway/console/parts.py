"""What the pages are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admin.port import Check
from gateway.index import Indexes
from gateway.large import UnderWay
from gateway.limits import Limits
from gateway.playing.instances import Instances
from gateway.settings import Settings
from gateway.store import Store
from gateway.upstream.clock import Clock


@dataclass(frozen=True, slots=True)
class Parts:
    """``checks`` are those of `/readyz`. ``has_parent``: this is a worker, and its parent has seen
    who asks, and says from where.
    """

    settings: Settings
    store: Store
    limits: Limits
    clock: Clock
    checks: Mapping[str, Check]
    under_way: UnderWay
    instances: Instances
    indexes: Indexes
    has_parent: bool = False
