"""The stored response of an operation, for a client that retries because it did not receive it.

A response that was on its way to a client is stored byte for byte. The answer of a flow that was
finished without a client is stored before translation: only the retry says which form of an id its
client uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.http.responses import LegacyResponse
from gateway.payloads import stored_json
from gateway.payloads.stored_json import StoredText
from mappings.effects import Answer

_ANSWER_START = "{"
"""The first character of a stored answer (a JSON object); stored responses are JSON arrays."""


def encode_response_parts(status: int, body: str, headers: Mapping[str, str]) -> str:
    """The stored text of a response of either service: ``[status, body, headers]``."""
    return json.dumps([status, body, dict(headers)])


def decode_response_parts(text: StoredText) -> tuple[int, str, dict[str, str]]:
    """The status, body and headers of a stored response."""
    status, body, headers = json.loads(stored_json.decompress_text(text))
    return status, body, headers


def encode_response(response: LegacyResponse) -> StoredText:
    return stored_json.compress_if_large(
        encode_response_parts(response.status, response.body_bytes.decode(), response.headers)
    )


def encode_answer(answer: Answer) -> StoredText:
    return stored_json.encode_value({"body": answer.body, "notices": list(answer.notices)})


def decode_stored_response(text: StoredText) -> LegacyResponse | Answer:
    if stored_json.starts_with(text, _ANSWER_START):
        stored: Any = stored_json.decode_value(text)
        return Answer(stored["body"], tuple(stored["notices"]))
    status, body, headers = decode_response_parts(text)
    return LegacyResponse(status, {}, headers, chunks=[body.encode()])
