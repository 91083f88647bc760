"""Ids of the two interfaces (legacy interface, section 2; current interface, section 2.2).

A legacy id is ``R-`` or ``B-`` and 16 characters, and the databases of clients may have no room for
more. Ids of the current interface can be longer. An id that fits is never changed; for a longer one
the gateway shows an *alias id* of the legacy shape. The shapes mark all ids (``field_types.Id``).
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from mappings.effects import JSON
from mappings.field_types import Id
from mappings.lazy_sequences import iterate_chunks
from mappings.shape_index import (
    ID_MARKS,
    LazyLists,
    Mark,
    MarkedTexts,
    compile_text_collector,
    index_shape,
    iterate_texts_with_ids,
    rewrite_marked_texts,
)

ALIAS_LENGTH = 16
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Upper case only: some databases compare ids without regard to case."""
_DIGIT_PAIRS = [first + second for second in _ALPHABET for first in _ALPHABET]
"""All pairs of digits: encoding two digits at a time halves the time."""

LEGACY_ID_PATTERN = re.compile(r"[A-Za-z]{1,2}-[A-Za-z0-9]{1,64}")
ID_IN_TEXT_PATTERN = re.compile(r"\b[RBP]-[A-Za-z0-9]{1,64}\b")

ID_PREFIXES = frozenset({"R", "B", "P"})
"""Prefixes of recipients, batches and payments."""


def needs_alias_id(kind: str, id_: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Whether legacy clients get an alias id for this id."""
    return is_kind_with_alias_ids(kind, mode) and len(id_.partition("-")[2]) > ALIAS_LENGTH


def is_kind_with_alias_ids(kind: str, mode: Literal["all", "batches", "none"]) -> bool:
    """Whether the configured mode gives alias ids to objects of this kind."""
    return mode == "all" or (mode == "batches" and kind == "batch")


def derive_alias_id(key: bytes, merchant: str, id_: str) -> str:
    """Derives the alias of an id: equal on all instances with the same key, unique per merchant.

    It is derived rather than random, so that instances that race to translate an id agree on it.
    """
    # Keyed, so that an alias id reveals nothing about the current id.
    text = f"{merchant}\n{id_}".encode()
    return f"{id_.partition('-')[0]}-{_encode_digest_as_id(hmac.digest(key, text, hashlib.sha256))}"


def derive_deterministic_id(prefix: str, *parts: str) -> str:
    """Derives an id for an object that the service does not have; equal parts give equal ids."""
    # The line feed keeps the parts apart: ("a", "bc") and ("ab", "c") differ.
    text = "\n".join(parts).encode()
    return f"{prefix}-{_encode_digest_as_id(hashlib.sha256(text).digest())}"


def _encode_digest_as_id(digest: bytes) -> str:
    # 36 to the 16th is about 2 to the 83rd: collisions are not a concern.
    number = int.from_bytes(digest, "big") % len(_ALPHABET) ** ALIAS_LENGTH
    text = ""
    for _ in range(ALIAS_LENGTH // 2):
        number, pair = divmod(number, len(_DIGIT_PAIRS))
        text += _DIGIT_PAIRS[pair]
    return text


TEXTS_PER_SLICE = 3000
"""Number of texts of a large body whose ids are collected together.

It is low enough to bound the memory, and high enough to store new alias ids in large batches.
"""


IdSets = tuple[AbstractSet[tuple[str, str]], AbstractSet[str]]
"""Ids with their kinds, and candidates found in free text, each in order of appearance."""

NO_IDS: IdSets = (frozenset(), frozenset())


def collect_ids(shape: Any, value: JSON) -> IdSets:
    """Collects the ids in a body of this shape, and possible ids in its free texts."""
    collect = compile_text_collector(shape) if value else None
    if collect is None:
        return NO_IDS
    texts: MarkedTexts = []
    lazy_lists: LazyLists = []
    collect(value, texts, lazy_lists)
    if lazy_lists:
        return _collect_ids_from_texts(iterate_texts_with_ids(shape, value))
    return _collect_ids_from_texts(texts)


def iterate_id_slices(shape: Any, value: JSON) -> Iterator[IdSets]:
    """Collects the ids as ``collect_ids`` does, but in slices; slices without ids are skipped."""
    for chunk in iterate_chunks(iterate_texts_with_ids(shape, value), TEXTS_PER_SLICE):
        ids, candidates = _collect_ids_from_texts(chunk)
        if ids or candidates:
            yield ids, candidates


def _collect_ids_from_texts(texts: Iterable[tuple[Mark, str]]) -> IdSets:
    # Dictionaries instead of sets: they keep the order, so that equal bodies give equal queries.
    ids: dict[tuple[str, str], None] = {}
    candidates: dict[str, None] = {}
    for mark, text in texts:
        if isinstance(mark, Id):
            ids[mark.kind, text] = None
        elif "-" in text:  # most texts contain no id
            candidates.update(dict.fromkeys(ID_IN_TEXT_PATTERN.findall(text)))
    return ids.keys(), candidates.keys()


def replace_ids(shape: Any, value: JSON, names: Mapping[str, str]) -> JSON:
    if not names:
        return value

    def replace_ids_in_marked_text(mark: Mark, text: str) -> str:
        if isinstance(mark, Id):
            return names.get(text, text)
        return replace_ids_in_text(text, names.get)

    return rewrite_marked_texts(index_shape(shape, ID_MARKS), value, replace_ids_in_marked_text)


def replace_ids_in_text(text: str, translate: Callable[[str], str | None]) -> str:
    """Replaces the known ids in free text, such as an error message."""
    if "-" not in text:  # Most texts contain no id, and this check is much faster than the pattern.
        return text
    return ID_IN_TEXT_PATTERN.sub(lambda found: translate(found[0]) or found[0], text)
