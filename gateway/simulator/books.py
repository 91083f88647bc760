"""What the service has done, for tests that must know how often."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Start:
    """One executed start; `at` in seconds of the service's clock."""

    merchant: str
    environment: str
    batch_id: str
    at: float


@dataclass
class Books:
    """`created` counts `recipient`, `account`, `batch` and `payment`; seeded ones are not."""

    starts: list[Start] = field(default_factory=list)
    created: Counter[str] = field(default_factory=Counter)
