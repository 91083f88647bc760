"""Long texts of the state: in pieces, each folded and sealed by itself, in rows of their own.

A database takes a value several times over on its way to the disk, so that no value is long: of a text
that is, its place has a *head*, sealed as the text would be, which says what its pieces are called and
how many there are. Pieces are never changed. A text that takes the place of another one has its own,
and those of the other go in the same transaction.
"""

from __future__ import annotations

import json
import os

from sqlalchemy import Delete, Select, and_, bindparam, delete, select

from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.payloads.stored_json import StoredText
from gateway.storage.encryption import EncryptionContext, EncryptionKeys
from gateway.storage.errors import StoreUnavailable
from gateway.storage.statements import Asked, Statement, Steps
from gateway.storage.tables import pieces

_HEAD_PREFIX = "+"
"""How a head begins; the id of a key does not."""

_CHUNKS_PER_READ = 8
"""How many are read at a time."""

_INSERT = Statement(lambda kind: kind.insert(pieces), tuple(column.name for column in pieces.c))
_IS_TEXT = and_(pieces.c.holder == bindparam("its"), pieces.c.name == bindparam("its_name"))
_SELECT_SLICE = Statement(
    lambda _kind: (
        select(pieces.c.sealed)
        .where(_IS_TEXT, pieces.c.number >= bindparam("first"), pieces.c.number < bindparam("end"))
        .order_by(pieces.c.number)
    )
)
_DELETE = Statement(lambda _kind: delete(pieces).where(pieces.c.holder == bindparam("its")))


class ChunkMissing(StoreUnavailable):
    """A text of which there is no more than its head, or was not when it was looked for."""


def encrypt_in_chunks(
    keys: EncryptionKeys, text: StoredText, place: EncryptionContext, holder: str
) -> Steps[str]:
    """Puts the pieces of a long text into the state; returns what is to stand in its place."""
    if isinstance(text, str):
        return keys.encrypt(text, place)
    name, count = os.urandom(16).hex(), 0
    for piece in text.iter_compressed_parts():
        sealed = keys.encrypt_bytes(piece, _build_chunk_context(place, name, count))
        yield _INSERT.of({"holder": holder, "name": name, "number": count, "sealed": sealed})
        count += 1
    return _HEAD_PREFIX + keys.encrypt(json.dumps([name, count, len(text)]), place)


def is_head(sealed: str) -> bool:
    """Whether what stands in a text's place says no more than where it is."""
    return sealed.startswith(_HEAD_PREFIX)


def decrypt_text(
    keys: EncryptionKeys, sealed: str, place: EncryptionContext, holder: str
) -> Steps[StoredText]:
    """The text in whose place this stands; raises Gone where it was dropped meanwhile."""
    if not is_head(sealed):
        return keys.decrypt(sealed, place)
    name, count, size = json.loads(keys.decrypt(sealed.removeprefix(_HEAD_PREFIX), place))
    found: list[bytes] = []
    for first in range(0, count, _CHUNKS_PER_READ):
        those = {"its": holder, "its_name": name, "first": first, "end": first + _CHUNKS_PER_READ}
        for number, (piece,) in enumerate((yield _SELECT_SLICE.of(those)), first):
            found.append(keys.decrypt_bytes(piece, _build_chunk_context(place, name, number)))
    if len(found) != count:
        raise ChunkMissing(
            f"pieces of {place.column} of {place.merchant} {place.environment} are missing",
            means="the state was altered",
            do="restore it from a backup",
        )
    return CompressedBuffer(found, size)


def build_deletion(*holders: str) -> Asked:
    """All that they have."""
    return _DELETE.of(*({"its": holder} for holder in holders))


def build_deletion_of_selected(holders: Select[tuple[str]]) -> Delete:
    """The same, where they are looked up."""
    return delete(pieces).where(pieces.c.holder.in_(holders))


def _build_chunk_context(place: EncryptionContext, name: str, number: int) -> EncryptionContext:
    """A piece opens nowhere but in its text, and there only where it stood."""
    return place._replace(column=f"piece {number} of {name}, {place.column}")
