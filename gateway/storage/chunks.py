"""Stores long texts in chunks, each compressed and encrypted by itself, in a row of its own.

A database copies a value several times on its way to the disk, so no value is long. In place of a
long text its row has a *head*, encrypted as the text would be, with the name and number of the
chunks. Chunks are never changed: a text that replaces another has its own, and those of the other
are deleted in the same transaction.
"""

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, delete, select

from gateway.payloads.stored_json import CompressedBuffer, StoredText
from gateway.storage.database import Transaction
from gateway.storage.encryption import EncryptionContext, EncryptionKeys
from gateway.storage.errors import StoreUnavailable
from gateway.storage.sql import Statement
from gateway.storage.tables import text_chunks

InsertChunks = Callable[[Transaction], Awaitable[None]]

_HEAD_PREFIX = "+"
"""The start of a head; an encrypted value starts with the id of its key, which never does."""

_CHUNKS_PER_READ = 8
"""Chunks that are loaded by one query."""

_INSERT = Statement(
    lambda kind: kind.insert(text_chunks), tuple(column.name for column in text_chunks.c)
)
_IS_TEXT = and_(
    text_chunks.c.holder == bindparam("text_holder"), text_chunks.c.name == bindparam("text_name")
)
_SELECT_SLICE = Statement(
    select(text_chunks.c.ciphertext)
    .where(
        _IS_TEXT,
        text_chunks.c.number >= bindparam("first"),
        text_chunks.c.number < bindparam("end"),
    )
    .order_by(text_chunks.c.number)
)
_DELETE = Statement(delete(text_chunks).where(text_chunks.c.holder == bindparam("text_holder")))


class ChunkMissing(StoreUnavailable):
    """A text has lost its chunks, which may have been deleted since its head was read."""


def encrypt_long_text(
    keys: EncryptionKeys, text: CompressedBuffer, place: EncryptionContext, holder: str
) -> tuple[str, InsertChunks]:
    """Returns the value to store in place of a long text, and what inserts its chunks."""
    # A new name for each text: chunks that are read while they are replaced cannot be mixed up.
    name = os.urandom(16).hex()

    async def encrypt_and_insert_chunks(tx: Transaction) -> None:
        for number, part in enumerate(text.parts):
            context = _build_chunk_context(place, name, number)
            encrypted = await tx.compute(True, keys.encrypt_bytes, part, context)
            row = {"holder": holder, "name": name, "number": number, "ciphertext": encrypted}
            await tx.execute(_INSERT, row)

    head = json.dumps([name, len(text.parts), len(text)])
    return _HEAD_PREFIX + keys.encrypt(head, place), encrypt_and_insert_chunks


def is_chunked_text_head(sealed: str) -> bool:
    """Whether an encrypted value is the head of a text that is stored in chunks."""
    return sealed.startswith(_HEAD_PREFIX)


async def load_and_decrypt_text(
    tx: Transaction, keys: EncryptionKeys, sealed: str, place: EncryptionContext, holder: str
) -> StoredText:
    """Loads and decrypts a text; raises ChunkMissing if it was deleted meanwhile."""
    if not is_chunked_text_head(sealed):
        return keys.decrypt(sealed, place)
    name, count, size = json.loads(keys.decrypt(sealed.removeprefix(_HEAD_PREFIX), place))
    parts: list[bytes] = []

    def decrypt_slice(first: int, rows: Sequence[Any]) -> None:
        for number, (encrypted,) in enumerate(rows, first):
            context = _build_chunk_context(place, name, number)
            parts.append(keys.decrypt_bytes(encrypted, context))

    chunks_of_text = {"text_holder": holder, "text_name": name}
    for first in range(0, count, _CHUNKS_PER_READ):
        limits = {"first": first, "end": first + _CHUNKS_PER_READ}
        rows = await tx.fetch(_SELECT_SLICE, {**chunks_of_text, **limits})
        await tx.compute(True, decrypt_slice, first, rows)
    # A text with a part missing must not pass for a shorter one.
    if len(parts) != count:
        raise ChunkMissing(
            f"chunks of {place.column} of {place.merchant} {place.environment} are missing",
            means="the database was altered",
            do="restore it from a backup",
        )
    return CompressedBuffer(parts, size)


async def delete_chunks(tx: Transaction, *holders: str) -> None:
    """Deletes all chunks of some holders."""
    if holders:
        await tx.execute(_DELETE, *({"text_holder": holder} for holder in holders))


def _build_chunk_context(place: EncryptionContext, name: str, number: int) -> EncryptionContext:
    """Builds the context that binds a chunk to its text and its position there."""
    # Authenticated with every stored chunk, so the wording can never change.
    return place._replace(column=f"piece {number} of {name}, {place.column}")
