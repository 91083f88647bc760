"""What the pages are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admin import Check
from gateway.clock import Clock
from gateway.index import Indexes
from gateway.instances import Instances
from gateway.large import UnderWay
from gateway.limits import Limits
from gateway.settings import Settings
from gateway.store import Store


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
