"""Ids of the two interfaces (legacy interface, section 2; current interface, section 2.2).

A legacy id is ``R-`` or ``B-`` and 16 characters, and that is what clients' databases have room for;
the current interface's can be longer. An id that fits is never changed; a longer one gets a
*stand-in* of the legacy shape. Which ids stand where is marked in the shapes (``kinds.Id``).
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
"""Upper case only: some databases compare without case."""
_PAIRS = [first + second for second in _DIGITS for first in _DIGITS]
"""Two digits in one: to take them one by one takes twice as long."""

SHAPE = re.compile(r"[A-Za-z]{1,2}-[A-Za-z0-9]{1,64}")
IN_TEXT = re.compile(r"\b[RBP]-[A-Za-z0-9]{1,64}\b")

PREFIXES = frozenset({"R", "B", "P"})
"""Of recipients, batches and payments."""


def needs_stand_in(kind: str, id_: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Whether an id is too long for legacy clients, and the operator wants a stand-in for it."""
    return has_stand_ins(kind, mode) and len(id_.partition("-")[2]) > LENGTH


def has_stand_ins(kind: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Whether objects of a kind whose ids are too long for legacy clients get any."""
    return mode == "all" or (mode == "batches" and kind == "batch")


def derive_stand_in(key: bytes, merchant: str, id_: str) -> str:
    """The same 16 characters on every instance that has the key; no two merchants share one."""
    text = f"{merchant}\n{id_}".encode()
    return f"{id_.partition('-')[0]}-{_characters(hmac.digest(key, text, hashlib.sha256))}"


def derive_id(prefix: str, *parts: str) -> str:
    """An id of ours, for what the service has no id for yet; the same parts make the same id."""
    text = "\n".join(parts).encode()
    return f"{prefix}-{_characters(hashlib.sha256(text).digest())}"


def _characters(digest: bytes) -> str:
    number = int.from_bytes(digest, "big") % len(_DIGITS) ** LENGTH
    text = ""
    for _ in range(LENGTH // 2):
        number, pair = divmod(number, len(_PAIRS))
        text += _PAIRS[pair]
    return text


TOGETHER = 3000
"""How many texts of a large value are looked at together: names that are made are kept as cheaply as
may be where a thousand of them are kept at once."""


Named = tuple[AbstractSet[tuple[str, str]], AbstractSet[str]]
"""Ids with their kinds, and what looks like one in free texts; both in their order."""


def collect_ids(shape: Any, value: JSON) -> Named:
    """Every id in a value of a shape, and all that looks like one."""
    return _named(iterate_marked_texts(locate_marks(shape, IDS), value))


def iterate_id_slices(shape: Any, value: JSON) -> Iterator[Named]:
    """The same, some at a time; nothing where there is none."""
    for some in iterate_chunks(iterate_marked_texts(locate_marks(shape, IDS), value), TOGETHER):
        found, mentioned = _named(some)
        if found or mentioned:
            yield found, mentioned


def _named(those: Iterable[tuple[Mark, str]]) -> Named:
    found: dict[tuple[str, str], None] = {}
    mentioned: dict[str, None] = {}
    for mark, text in those:
        if isinstance(mark, Id):
            found[mark.kind, text] = None
        elif isinstance(mark, Mentions):
            mentioned.update(dict.fromkeys(find_ids_in_text(text)))
    return found.keys(), mentioned.keys()


def recall_legacy_ids(rows: Iterable[Mapping[str, JSON]]) -> Recall:
    """What clients call some objects, where that is known and is something else."""
    return Recall("legacy id", ids=tuple(str(row["id"]) for row in rows))


def replace_ids(shape: Any, value: JSON, names: Mapping[str, str]) -> JSON:
    """A value of a shape, its ids spelled anew."""

    def spell(mark: Mark, text: str) -> str:
        if isinstance(mark, Id):
            return names.get(text, text)
        return replace_ids_in_text(text, names.get) if isinstance(mark, Mentions) else text

    return rewrite_marked_texts(locate_marks(shape, IDS), value, spell) if names else value


def replace_ids_in_text(text: str, name: Callable[[str], str | None]) -> str:
    """Free text, such as an error message, with the ids that are known spelled anew."""
    if "-" not in text:  # as of most: to look for ids takes far longer
        return text
    return IN_TEXT.sub(lambda found: name(found[0]) or found[0], text)


def find_ids_in_text(text: str) -> Sequence[str]:
    """What looks like an id in free text."""
    return IN_TEXT.findall(text) if "-" in text else ()
