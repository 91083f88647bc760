"""The calls that replace the operations that a key uses, and the use of rate limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.limits import RateLimiter
from gateway.auth.key_rows import load_listed_keys
from gateway.storage import Store, Tenant
from mappings import OPERATIONS, UNLISTED
from mappings.provenance import list_documented_calls_without_drafts


def map_operations_to_replacement_calls() -> dict[str, Sequence[str]]:
    """Returns the current calls that replace each operation, taken from the mapping."""
    return {
        # Each once: without their notes, calls for several cases look alike.
        operation.name: [
            *dict.fromkeys(call["call"] for call in list_documented_calls_without_drafts(operation))
        ]
        for operation in (*OPERATIONS, *UNLISTED)
    }


NEAR_LIMIT_RATIO = 0.8
"""A key is near its limit from this share on."""

SIGNED_REQUESTS = "signed requests"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Current use of a rate limit. ``used`` is None if the counter is unavailable."""

    tenant: Tenant
    name: str
    limit: int
    used: int | None

    def __str__(self) -> str:
        return f"{self.name} of {self.tenant}"

    @property
    def ratio(self) -> float:
        return (self.used or 0) / self.limit if self.limit else 0.0

    @property
    def level(self) -> str:
        if self.used is not None and self.used >= self.limit:
            return "reached"
        return "near" if self.ratio >= NEAR_LIMIT_RATIO else "ok"


async def load_limit_usage(store: Store, limits: RateLimiter, default_limit: int) -> list[LimitUse]:
    """Loads the use of all active keys, and of each merchant's signed requests if there are any.

    The highest share comes first. Raises StoreUnavailable.
    """
    keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
    tenants = sorted({key.tenant for key in keys})
    # By the names that the legacy and the signed interface count by.
    limited = {
        key.id: (key.tenant, key.name, key.requests_per_hour or default_limit) for key in keys
    }
    signed = {f"signed {tenant}": (tenant, SIGNED_REQUESTS, default_limit) for tenant in tenants}
    counts = await limits.list_window_request_counts([*limited, *signed])
    # Without counts the backend cannot be reached: unknown, which is not zero.
    used = dict(zip([*limited, *signed], counts, strict=True)) if counts else {}
    uses = [LimitUse(*limit, used.get(name)) for name, limit in limited.items()]
    uses += [LimitUse(*signed[name], used[name]) for name in signed if used.get(name)]
    return sorted(uses, key=lambda use: (-use.ratio, use.tenant, use.name))
