"""A budget of bytes for request bodies in memory.

A body counts with its declared length before any of it is read, or else as its bytes arrive. One
merchant gets at most half of the budget. The last eighth is reserved for small bodies, so that a few
large, slow bodies cannot keep other clients from sending a payment.
"""

from __future__ import annotations

from collections import Counter

SMALL = 64 * 1024


class MemoryBudget:
    def __init__(self, most: int) -> None:
        self._most = most
        self._by: Counter[str] = Counter()
        self.total = 0

    @property
    def most_per_merchant(self) -> int:
        return self._most // 2

    def take(self, merchant: str, size: int, has: int = 0) -> bool:
        """Reserve ``size`` more bytes for a body with ``reserved`` bytes; return whether they fit."""
        is_small = size + has <= SMALL
        # Large bodies cannot use the last eighth.
        room = self._most if is_small else self._most - self._most // 8
        if self.total + size > room or self._by[merchant] + size > self.most_per_merchant:
            return False
        self._by[merchant] += size
        self.total += size
        return True

    def give_back(self, merchant: str, size: int) -> None:
        self.total -= size
        self._by[merchant] -= size
        if not self._by[merchant]:
            del self._by[merchant]
