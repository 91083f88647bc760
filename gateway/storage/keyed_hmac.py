"""HMAC-SHA256 with a key that is used many times, and processed once."""

from __future__ import annotations

import hmac
from collections.abc import Iterable


class KeyedHmac:
    def __init__(self, key: bytes) -> None:
        self._hmac = hmac.new(key, digestmod="sha256")

    def hexdigest(self, message: bytes) -> str:
        return self.hexdigest_parts((message,))

    def hexdigest_parts(self, parts: Iterable[bytes | memoryview]) -> str:
        """Returns the digest of a message in parts, so that a large one need not be joined."""
        digest = self._hmac.copy()
        for part in parts:
            digest.update(part)
        return digest.hexdigest()
