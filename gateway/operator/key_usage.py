"""Groups usage by key, and lists the calls that replace each operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.storage import Tenant
from gateway.storage.request_counts import UsageSummary
from mappings import OPERATIONS, UNLISTED
from mappings.provenance import list_documented_calls_without_drafts


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """Usage of one key. An empty ``key`` stands for requests without a known key."""

    owner: Tenant
    key: str
    operations: list[UsageSummary] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(row.requests for row in self.operations)

    @property
    def last_at(self) -> datetime:
        return max(row.last_at for row in self.operations)


def group_usage_by_key(rows: Iterable[UsageSummary]) -> list[KeyUsage]:
    """Groups rows by key, in the order of their first row."""
    usage_by_key: dict[tuple[Tenant, str], KeyUsage] = {}
    for row in rows:
        owner = Tenant(row.merchant, row.environment)
        usage_by_key.setdefault((owner, row.key), KeyUsage(owner, row.key)).operations.append(row)
    return list(usage_by_key.values())


def map_operations_to_replacement_calls() -> dict[str, Sequence[str]]:
    """Returns the current calls that replace each operation, taken from the mapping."""
    all_operations = (*OPERATIONS, *UNLISTED)
    return {
        operation.name: [call["call"] for call in list_documented_calls_without_drafts(operation)]
        for operation in all_operations
    }
