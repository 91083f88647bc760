"""HMAC-SHA256 (RFC 2104) with a key that is used many times, and processed once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_BLOCK_BYTES = 64
_INNER_PAD, _OUTER_PAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class KeyedHmac:
    """Copies two prepared hashes, which takes half as long as copying an object of ``hmac``."""

    def __init__(self, key: bytes) -> None:
        key = hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER_PAD))
        self._outer = hashlib.sha256(block.translate(_OUTER_PAD))

    def hexdigest(self, message: bytes) -> str:
        return self.hexdigest_parts((message,))

    def hexdigest_parts(self, parts: Iterable[bytes | memoryview]) -> str:
        """Returns the digest of a message in parts, so that a large one need not be joined."""
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.hexdigest()
