"""Record of executed writes, for tests that check that nothing happens twice."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Start:
    """An executed start; `started_at` is in seconds of the service's clock."""

    merchant: str
    environment: str
    batch_id: str
    at: float


@dataclass
class Books:
    """Starts, and counts of created objects by type, without seeded ones."""

    starts: list[Start] = field(default_factory=list)
    created: Counter[str] = field(default_factory=Counter)
