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
from gateway.payloads.stored_json import Text
from gateway.storage.database import Transaction
from gateway.storage.encryption import EncryptionKeys, Place
from gateway.storage.errors import StoreUnavailable
from gateway.storage.sql import Statement
from gateway.storage.tables import pieces

_HEAD = "+"
"""How a head begins; the id of a key does not."""

_AT_ONCE = 8
"""How many are read at a time."""

_PUT = Statement(lambda kind: kind.insert(pieces), tuple(column.name for column in pieces.c))
_THESE = and_(pieces.c.holder == bindparam("its"), pieces.c.name == bindparam("its_name"))
_SOME = Statement(
    lambda _kind: (
        select(pieces.c.sealed)
        .where(_THESE, pieces.c.number >= bindparam("first"), pieces.c.number < bindparam("end"))
        .order_by(pieces.c.number)
    )
)
_DROP = Statement(lambda _kind: delete(pieces).where(pieces.c.holder == bindparam("its")))


class ChunkMissing(StoreUnavailable):
    """A text of which there is no more than its head, or was not when it was looked for."""


async def put(tx: Transaction, keys: EncryptionKeys, text: Text, place: Place, holder: str) -> str:
    """Puts the pieces of a long text into the state; returns what is to stand in its place."""
    if isinstance(text, str):
        return keys.seal(text, place)
    name, count = os.urandom(16).hex(), 0
    for piece in text.parts():
        sealed = keys.seal_bytes(piece, _place(place, name, count))
        row = {"holder": holder, "name": name, "number": count, "sealed": sealed}
        await tx.execute(_PUT, row)
        count += 1
    return _HEAD + keys.seal(json.dumps([name, count, len(text)]), place)


def is_head(sealed: str) -> bool:
    """Whether what stands in a text's place says no more than where it is."""
    return sealed.startswith(_HEAD)


async def whole(
    tx: Transaction, keys: EncryptionKeys, sealed: str, place: Place, holder: str
) -> Text:
    """The text in whose place this stands; raises Gone where it was dropped meanwhile."""
    if not is_head(sealed):
        return keys.unseal(sealed, place)
    name, count, size = json.loads(keys.unseal(sealed.removeprefix(_HEAD), place))
    found: list[bytes] = []
    for first in range(0, count, _AT_ONCE):
        those = {"its": holder, "its_name": name, "first": first, "end": first + _AT_ONCE}
        for number, (piece,) in enumerate(await tx.fetch(_SOME, those), first):
            found.append(keys.unseal_bytes(piece, _place(place, name, number)))
    if len(found) != count:
        raise ChunkMissing(
            f"pieces of {place.column} of {place.merchant} {place.environment} are missing",
            means="the state was altered",
            do="restore it from a backup",
        )
    return CompressedBuffer(found, size)


async def drop(tx: Transaction, *holders: str) -> None:
    """All that they have."""
    await tx.execute(_DROP, *({"its": holder} for holder in holders))


def dropping(holders: Select[tuple[str]]) -> Delete:
    """The same, where they are looked up."""
    return delete(pieces).where(pieces.c.holder.in_(holders))


def _place(place: Place, name: str, number: int) -> Place:
    """A piece opens nowhere but in its text, and there only where it stood."""
    return place._replace(column=f"piece {number} of {name}, {place.column}")
