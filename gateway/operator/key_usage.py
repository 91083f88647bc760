"""Who still uses what, a key at a time: the list of what is left to migrate."""

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
    """What was used with one key; an empty ``key`` is requests without one that is known."""

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
    """In the order in which they are given."""
    found: dict[tuple[Tenant, str], KeyUse] = {}
    for one in rows:
        owner = Tenant(one.merchant, one.environment)
        found.setdefault((owner, one.key), KeyUse(owner, one.key)).operations.append(one)
    return list(found.values())


def list_replacement_calls() -> dict[str, Sequence[str]]:
    """For each operation the current calls that replace it, from the mapping itself."""
    those = (*OPERATIONS, *UNLISTED)
    return {one.name: [call["call"] for call in list_client_calls(one)] for one in those}
