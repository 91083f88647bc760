"""Bytes of bodies in memory: so many in all, and no merchant has them all.

A body counts by the length that it declares, before any of it is read, or else as it comes. A
merchant holds at most half. The last eighth is for small bodies: a few large ones that come slowly
keep nobody from sending a payment.
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
        """Whether there is room for ``size`` more of a body that ``has`` as much already."""
        is_small = size + has <= SMALL
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
