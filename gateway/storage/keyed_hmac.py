"""HMAC-SHA256 (RFC 2104) with a key that is used many times, and processed once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_BLOCK_BYTES = 64


class KeyedHmac:
    def __init__(self, key: bytes) -> None:
        # Two hashes instead of one from ``hmac``: copying that one takes twice as long.
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha256(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def hexdigest(self, message: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.hexdigest()

    def hexdigest_parts(self, parts: Iterable[bytes | memoryview]) -> str:
        """Returns the digest of a message in parts, so that a large one need not be joined."""
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.hexdigest()
