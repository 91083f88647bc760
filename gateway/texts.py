"""Values as the state keeps them: JSON, and where that is long, folded."""

from __future__ import annotations

import base64
import zlib
from itertools import chain

from gateway import wire
from gateway.folded import Folded
from mappings.grammar import JSON

Text = str | Folded

_PACKED = "z"
"""How a long text began, and no JSON does, before it was kept in pieces: packed as a whole, in base64."""


def of(value: JSON) -> Text:
    parts = wire.parts(value)
    plain: list[bytes] = []
    size = 0
    for part in parts:
        plain.append(part)
        size += len(part)
        if size > wire.LARGE:
            return Folded.of(chain(plain, parts))
    return b"".join(plain).decode()


def kept(text: str) -> Text:
    """A text that is there, as it is to be kept."""
    data = text.encode()
    return Folded.of([data]) if len(data) > wire.LARGE else text


def plain(text: Text) -> str:
    return text if isinstance(text, str) else bytes(text).decode()


def begins_with(text: Text, character: str) -> bool:
    """Of a long one the rest is left folded."""
    if isinstance(text, str):
        return text.startswith(character)
    return bytes(next(text.windows(), b"")[:1]) == character.encode()


def value(text: Text) -> JSON:
    """Its long lists are Rows."""
    if isinstance(text, Folded):
        return wire.read(text, wire.LONG)
    if is_long(text):
        return wire.read(zlib.decompress(base64.b64decode(text[1:])), wire.LONG)
    return wire.own(text)


def is_long(text: Text) -> bool:
    """Whether to read it takes so long that others should not wait for it."""
    return isinstance(text, Folded) or text.startswith(_PACKED)
