"""Record of executed writes, for tests that check that nothing happens twice."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BatchStart:
    """An executed start; `started_at` is in seconds of the service's clock."""

    merchant: str
    environment: str
    batch_id: str
    started_at: float


@dataclass
class Effects:
    """Starts, and counts of created objects by type, without seeded ones."""

    starts: list[BatchStart] = field(default_factory=list)
    creation_counts: Counter[str] = field(default_factory=Counter)
