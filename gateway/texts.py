"""Values as the state keeps them: JSON, and where that is long, packed.

What is kept is sealed as one text, and a sealed text is copied several times on its way to the disk.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterable
from itertools import chain

from gateway import wire
from mappings.grammar import JSON

_PACKED = "z"
"""How a packed text begins; no JSON does."""

_QUICKLY = 1

_STEP = 3 * 64 * 1024
"""Bytes that base64 is made of at a time: three of them are four characters, with nothing left over."""


def of(value: JSON) -> str:
    parts = wire.parts(value)
    plain: list[bytes] = []
    size = 0
    for part in parts:
        plain.append(part)
        size += len(part)
        if size > wire.LARGE:
            return _packed(chain(plain, parts))
    return b"".join(plain).decode()


def value(text: str) -> JSON:
    """Its long lists are Rows."""
    if is_packed(text):
        return wire.read(zlib.decompress(base64.b64decode(text[1:])), wire.LONG)
    return wire.read(text.encode())


def is_packed(text: str) -> bool:
    return text.startswith(_PACKED)


def _packed(parts: Iterable[bytes]) -> str:
    packing, packed = zlib.compressobj(_QUICKLY), io.BytesIO()
    for part in parts:
        packed.write(packing.compress(part))
    packed.write(packing.flush())
    return in_base64(_PACKED, packed.getbuffer())


def in_base64(before: str, data: bytes | memoryview) -> str:
    """The data in base64, after what stands before it: of what is long in steps, with no copy too many."""
    if len(data) <= _STEP:
        return before + base64.b64encode(data).decode()
    text, left = io.BytesIO(), memoryview(data)
    text.write(before.encode())
    for start in range(0, len(left), _STEP):
        text.write(base64.b64encode(left[start : start + _STEP]))
    return text.getvalue().decode()
