"""A budget of bytes for request bodies in memory.

A body counts with its declared length before any of it is read, or else as its bytes arrive. One
merchant gets at most half of the budget. The last eighth is reserved for small bodies, so that a
few large, slow bodies cannot keep other clients from sending a payment.
"""

from __future__ import annotations

from collections import Counter

SMALL_BODY_BYTES = 64 * 1024


class MemoryBudget:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_bytes_per_merchant = max_bytes // 2
        self._bytes_by_merchant: Counter[str] = Counter()
        self.reserved_bytes = 0

    def try_reserve(self, merchant: str, size: int, reserved: int = 0) -> bool:
        """Reserves ``size`` bytes for a body that already has ``reserved``; False without room."""
        is_small = size + reserved <= SMALL_BODY_BYTES
        # Large bodies cannot use the last eighth.
        available_bytes = self._max_bytes if is_small else self._max_bytes - self._max_bytes // 8
        if (
            self.reserved_bytes + size > available_bytes
            or self._bytes_by_merchant[merchant] + size > self.max_bytes_per_merchant
        ):
            return False
        self._bytes_by_merchant[merchant] += size
        self.reserved_bytes += size
        return True

    def release(self, merchant: str, size: int) -> None:
        self.reserved_bytes -= size
        self._bytes_by_merchant[merchant] -= size
        # Removed at zero, so that the counter does not grow with every merchant ever served.
        if not self._bytes_by_merchant[merchant]:
            del self._bytes_by_merchant[merchant]
