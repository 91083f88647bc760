"""HMAC-SHA256 (RFC 2104) with a key that is used many times.

The hash states of the key are computed once. The standard library processes the key for each
message, which takes three times as long for a text of the size of a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

_BLOCK = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


class KeyedHmac:
    def __init__(self, key: bytes) -> None:
        # A key that is longer than a block is hashed first (RFC 2104, section 2).
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = sha256(block.translate(_INNER_PAD))
        self._outer = sha256(block.translate(_OUTER_PAD))

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
