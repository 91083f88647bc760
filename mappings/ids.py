"""Ids of the two interfaces (legacy interface, section 2; current interface, section 2.2).

A legacy id is ``R-`` or ``B-`` and 16 characters, and the databases of clients may have no room for
more. Ids of the current interface can be longer. An id that fits is never changed; for a longer one
the gateway shows an *alias id* of the legacy shape. The shapes mark all ids (``field_types.Id``).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from mappings.grammar import JSON, Recall
from mappings.kinds import Id, Mentions
from mappings.places import IDS, Mark, iterate_marked_texts, locate_marks, rewrite_marked_texts
from mappings.rows import iterate_chunks

LENGTH = 16
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Upper case only: some databases compare ids without regard to case."""
_PAIRS = [first + second for second in _DIGITS for first in _DIGITS]
"""All pairs of digits: encoding two digits at a time halves the time."""

SHAPE = re.compile(r"[A-Za-z]{1,2}-[A-Za-z0-9]{1,64}")
IN_TEXT = re.compile(r"\b[RBP]-[A-Za-z0-9]{1,64}\b")

PREFIXES = frozenset({"R", "B", "P"})
"""Prefixes of recipients, batches and payments."""


def needs_stand_in(kind: str, id_: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Tells if legacy clients get an alias id for this id."""
    return has_stand_ins(kind, mode) and len(id_.partition("-")[2]) > LENGTH


def has_stand_ins(kind: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Tells if the configured mode gives alias ids to objects of this kind."""
    return mode == "all" or (mode == "batches" and kind == "batch")


def derive_stand_in(key: bytes, merchant: str, id_: str) -> str:
    """Derives the alias of an id: equal on all instances with the same key, unique per merchant.

    It is derived rather than random, so that instances that race to translate an id agree on it.
    """
    # Keyed, so that an alias id reveals nothing about the current id.
    text = f"{merchant}\n{id_}".encode()
    return f"{id_.partition('-')[0]}-{_characters(hmac.digest(key, text, hashlib.sha256))}"


def derive_id(prefix: str, *parts: str) -> str:
    """Derives an id for an object that the service does not have; equal parts give equal ids."""
    text = "\n".join(parts).encode()
    return f"{prefix}-{_characters(hashlib.sha256(text).digest())}"


def _characters(digest: bytes) -> str:
    # 36 to the 16th is about 2 to the 83rd: collisions are not a concern.
    number = int.from_bytes(digest, "big") % len(_DIGITS) ** LENGTH
    text = ""
    for _ in range(LENGTH // 2):
        number, pair = divmod(number, len(_PAIRS))
        text += _PAIRS[pair]
    return text


TOGETHER = 3000
"""Texts of a large body whose ids are collected together: few enough to bound the memory, and
enough for storing new alias ids in large batches.
"""


Named = tuple[AbstractSet[tuple[str, str]], AbstractSet[str]]
"""Ids with their kinds, and candidates found in free text, each in order of appearance."""


def collect_ids(shape: Any, value: JSON) -> Named:
    """Collects the ids in a body of this shape, and what looks like an id in its free texts."""
    return _named(iterate_marked_texts(locate_marks(shape, IDS), value))


def iterate_id_slices(shape: Any, value: JSON) -> Iterator[Named]:
    """Collects the ids as ``collect_ids`` does, but in slices; slices without ids are skipped."""
    for some in iterate_chunks(iterate_marked_texts(locate_marks(shape, IDS), value), TOGETHER):
        found, mentioned = _named(some)
        if found or mentioned:
            yield found, mentioned


def _named(those: Iterable[tuple[Mark, str]]) -> Named:
    # Dictionaries instead of sets: they keep the order, so that equal bodies give equal queries.
    found: dict[tuple[str, str], None] = {}
    mentioned: dict[str, None] = {}
    for mark, text in those:
        if isinstance(mark, Id):
            found[mark.kind, text] = None
        elif isinstance(mark, Mentions):
            mentioned.update(dict.fromkeys(find_ids_in_text(text)))
    return found.keys(), mentioned.keys()


def recall_legacy_ids(rows: Iterable[Mapping[str, JSON]]) -> Recall:
    """Loads the legacy ids of objects whose clients know them by another id."""
    return Recall("legacy id", ids=tuple(str(row["id"]) for row in rows))


def replace_ids(shape: Any, value: JSON, names: Mapping[str, str]) -> JSON:
    """Replaces the ids in a body of this shape."""

    def spell(mark: Mark, text: str) -> str:
        if isinstance(mark, Id):
            return names.get(text, text)
        return replace_ids_in_text(text, names.get) if isinstance(mark, Mentions) else text

    return rewrite_marked_texts(locate_marks(shape, IDS), value, spell) if names else value


def replace_ids_in_text(text: str, name: Callable[[str], str | None]) -> str:
    """Replaces the known ids in free text, such as an error message."""
    if "-" not in text:  # Most texts contain no id, and this check is much faster than the pattern.
        return text
    return IN_TEXT.sub(lambda found: name(found[0]) or found[0], text)


def find_ids_in_text(text: str) -> Sequence[str]:
    """Returns everything in free text that looks like an id."""
    return IN_TEXT.findall(text) if "-" in text else ()
