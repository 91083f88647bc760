"""Ids of the two interfaces (legacy interface, section 2; current interface, section 2.2).

A legacy id is ``R-`` or ``B-`` and 16 characters, and that is what clients' databases have room for;
the current interface's can be longer. An id that fits is never changed; a longer one gets a
*stand-in* of the legacy shape. Which ids stand where is marked in the shapes (``kinds.Id``).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mappings.grammar import JSON
from mappings.kinds import Id, Mentions
from mappings.places import Mark, place_of, rewritten

LENGTH = 16
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Upper case only: some databases compare without case."""

SHAPE = re.compile(r"[A-Za-z]{1,2}-[A-Za-z0-9]{1,64}")
IN_TEXT = re.compile(r"\b[RBP]-[A-Za-z0-9]{1,64}\b")

PREFIXES = {"recipient": "R", "batch": "B", "payment": "P"}


def needs_stand_in(kind: str, id_: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Whether an id is too long for legacy clients, and the operator wants a stand-in for it."""
    if mode == "none" or (mode == "batches" and kind != "batch"):
        return False
    return len(id_.partition("-")[2]) > LENGTH


def stand_in(key: bytes, merchant: str, id_: str) -> str:
    """The same 16 characters on every instance that has the key; no two merchants share one."""
    text = f"{merchant}\n{id_}".encode()
    return f"{id_.partition('-')[0]}-{_characters(hmac.digest(key, text, hashlib.sha256))}"


def made(prefix: str, *parts: str) -> str:
    """An id of ours, for what the service has no id for yet; the same parts make the same id."""
    text = "\n".join(parts).encode()
    return f"{prefix}-{_characters(hashlib.sha256(text).digest())}"


def _characters(digest: bytes) -> str:
    number, text = int.from_bytes(digest, "big"), ""
    for _ in range(LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        text += _DIGITS[digit]
    return text


def ids_in(shape: Any, value: JSON) -> set[tuple[str, str]]:
    """Every id in a value of a shape, with its kind."""
    found: set[tuple[str, str]] = set()

    def note(mark: Mark, text: str) -> str:
        if isinstance(mark, Id):
            found.add((mark.kind, text))
        return text

    rewritten(place_of(shape), value, note)
    return found


def ids_mentioned(shape: Any, value: JSON) -> set[str]:
    """What looks like an id in the free texts of a value of a shape."""
    found: set[str] = set()

    def note(mark: Mark, text: str) -> str:
        if isinstance(mark, Mentions):
            found.update(IN_TEXT.findall(text))
        return text

    rewritten(place_of(shape), value, note)
    return found


def with_ids(shape: Any, value: JSON, names: Mapping[str, str]) -> JSON:
    """A value of a shape, its ids spelled anew."""

    def spell(mark: Mark, text: str) -> str:
        if isinstance(mark, Mentions):
            return with_ids_in_text(text, names.get)
        return names.get(text, text) if isinstance(mark, Id) else text

    return rewritten(place_of(shape), value, spell) if names else value


def with_ids_in_text(text: str, name: Callable[[str], str | None]) -> str:
    """Free text, such as an error message, with the ids that are known spelled anew."""
    return IN_TEXT.sub(lambda found: name(found[0]) or found[0], text)
