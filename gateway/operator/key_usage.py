"""Groups usage by key, and lists the calls that replace each operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.storage import Tenant
from gateway.storage.usage_rows import Used
from mappings import OPERATIONS, UNLISTED
from mappings.provenance import list_client_calls


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Usage of one key. An empty ``key`` stands for requests without a known key."""

    owner: Tenant
    key: str
    operations: list[Used] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.operations)

    @property
    def last_at(self) -> datetime:
        return max(one.last_at for one in self.operations)


def group_usage_by_key(rows: Iterable[Used]) -> list[KeyUse]:
    """Groups rows by key, in the order of their first row."""
    found: dict[tuple[Tenant, str], KeyUse] = {}
    for one in rows:
        owner = Tenant(one.merchant, one.environment)
        found.setdefault((owner, one.key), KeyUse(owner, one.key)).operations.append(one)
    return list(found.values())


def list_replacement_calls() -> dict[str, Sequence[str]]:
    """The current calls that replace each operation, taken from the mapping."""
    those = (*OPERATIONS, *UNLISTED)
    return {one.name: [call["call"] for call in list_client_calls(one)] for one in those}
