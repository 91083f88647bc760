"""The encrypted texts of operations: requests, step results and responses."""

from contextlib import suppress
from typing import Literal

from gateway.payloads.stored_json import StoredText
from gateway.storage import chunks
from gateway.storage.encryption import EncryptionContext
from gateway.storage.operation_records import OperationRecord
from gateway.storage.operation_statements import ANSWER_HOLDER_PREFIX
from gateway.storage.store import Store

TextColumn = Literal["request", "results", "response"]

_CONTEXT_NAMES: dict[TextColumn, str] = {
    "request": "asked",
    "results": "given",
    "response": "answer",
}
"""Names of the columns when the first texts were encrypted; they decrypt under no others."""


class OperationTexts:
    def __init__(self, store: Store) -> None:
        self._store = store

    def encrypt(
        self,
        record: OperationRecord,
        column: TextColumn,
        text: StoredText,
        chunk_inserts: list[chunks.InsertChunks],
    ) -> str:
        """Returns the value to store in the column; adds what inserts the chunks of a long text."""
        keys, context = self._store.encryption, build_text_encryption_context(record, column)
        if isinstance(text, str):
            return keys.encrypt(text, context)
        holder = _build_chunk_holder_id(record, column)
        head, insert_chunks = chunks.encrypt_long_text(keys, text, context, holder)
        chunk_inserts.append(insert_chunks)
        return head

    async def decrypt(
        self, record: OperationRecord, column: TextColumn, encrypted: StoredText | None
    ) -> StoredText | None:
        """Decrypts a column; None if it is empty, or its chunks were deleted as obsolete."""
        if not isinstance(encrypted, str):
            return encrypted
        keys, context = self._store.encryption, build_text_encryption_context(record, column)
        if not chunks.is_chunked_text_head(encrypted):
            return keys.decrypt(encrypted, context)
        holder = _build_chunk_holder_id(record, column)
        with suppress(chunks.ChunkMissing):
            return await self._store.read(
                lambda tx: chunks.load_and_decrypt_text(tx, keys, encrypted, context, holder)
            )
        return None


def build_text_encryption_context(record: OperationRecord, column: TextColumn) -> EncryptionContext:
    tenant = record.tenant
    place = f"{_CONTEXT_NAMES[column]} of {record.id}"
    return EncryptionContext("journal", tenant.merchant, tenant.environment, place)


def _build_chunk_holder_id(record: OperationRecord, column: TextColumn) -> str:
    """Returns the holder of a column's chunks."""
    # A holder of its own, because a response may be stored longer than the other texts.
    return f"{ANSWER_HOLDER_PREFIX}{record.id}" if column == "response" else record.id
