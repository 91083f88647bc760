"""The stored response of an operation, for a client that retries because it did not receive it.

A response that was on its way to a client is stored byte for byte. The answer of a flow that was
finished without a client is stored before translation: only the retry says which form of an id its
client uses.
"""

import json
from typing import Any

import msgspec
from msgspec import structs

from gateway.http.responses import LegacyResponse
from gateway.payloads import stored_json
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage.operation_records import OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.writes.write_request import RenderAnswer, WriteRequest
from mappings.effects import Answer
from mappings.failures import Unknown

FORWARDED_RETRY_AFTER_SECONDS = 2
"""The ``Retry-After`` of a forwarded write in doubt, in seconds: an operator may resolve it soon."""

_ANSWER_START = "{"
"""The first character of a stored answer (a JSON object); stored responses are JSON arrays."""


class ObjectNotShownError(Unknown):
    """The legacy service does not have the object that an operator named, or it is another one."""


async def encode_response(response: LegacyResponse) -> StoredText:
    """Encodes a response of either service as ``[status, body, headers]``."""
    if response.is_long:
        return await run_in_thread(_encode_response, response)
    return _encode_response(response)


def _encode_response(response: LegacyResponse) -> StoredText:
    parts = [response.status, response.body_bytes.decode(), dict(response.headers)]
    try:
        text = msgspec.json.encode(parts).decode()
    except UnicodeEncodeError:  # a header of the legacy service that is not UTF-8
        text = json.dumps(parts)
    return stored_json.compress_if_large(text)


def encode_answer(answer: Answer) -> StoredText:
    return stored_json.encode_value({"body": answer.body, "notices": list(answer.notices)})


def decode_stored_response(text: StoredText) -> LegacyResponse | Answer:
    if stored_json.starts_with(text, _ANSWER_START):
        stored: Any = stored_json.decode_value(text)
        return Answer(stored["body"], tuple(stored["notices"]))
    status, body, headers = json.loads(stored_json.decompress_text(text))
    return LegacyResponse(status, [body.encode()], headers)


def add_replayed_header(response: LegacyResponse) -> LegacyResponse:
    """Adds the header that tells a client of a replay (contract, section 7)."""
    return structs.replace(response, headers={**response.headers, "Idempotent-Replayed": "true"})


async def load_first_attempt_response(
    first_attempt: OperationRecord,
    write_request: WriteRequest,
    render_answer: RenderAnswer,
    operations: OperationRepository,
) -> LegacyResponse | None:
    """Loads the stored response of a first attempt, if it has one.

    That of a forwarded request which an operator confirmed is read at the legacy service. Raises
    Unknown for a forwarded request without one.
    """
    if first_attempt.response is not None:
        is_long = stored_json.is_large(first_attempt.response)
        stored = await run_in_thread_if(is_long, decode_stored_response, first_attempt.response)
        if isinstance(stored, LegacyResponse):
            return stored
        render: RenderAnswer | None = render_answer
        if first_attempt.is_forwarded:
            render = write_request.rebuild_forwarded_response
        if render is not None:
            write_request.caller.is_long = write_request.caller.is_long or is_long
            try:
                return await render(stored)
            except ObjectNotShownError as refutation:
                await _withdraw_operator_outcome(operations, first_attempt, str(refutation))
                raise
    if first_attempt.is_forwarded:
        raise Unknown(
            "the response to its first attempt at the legacy service is not known",
            retry_after=FORWARDED_RETRY_AFTER_SECONDS,
        )
    return None


async def _withdraw_operator_outcome(
    operations: OperationRepository, record: OperationRecord, reason: str
) -> None:
    """Puts a forwarded write in doubt again, so that it is listed and the operator can correct it."""
    for write in (await operations.load_writes(record.id))[record.id]:
        if write.operator_outcome is not None:
            await operations.reopen_confirmed_by_operator(record, write, reason=reason)
