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
from gateway.payloads.stored_json import Text
from mappings.effects import Answer

_UNTOLD = "{"
"""The first character of a stored answer (a JSON object); stored responses are JSON arrays."""


def worded(status: int, body: str, headers: Mapping[str, str]) -> str:
    """The stored text of a response of either service: ``[status, body, headers]``."""
    return json.dumps([status, body, dict(headers)])


def words(text: Text) -> tuple[int, str, dict[str, str]]:
    """The status, body and headers of a stored response."""
    status, body, headers = json.loads(stored_json.plain(text))
    return status, body, headers


def told(said: LegacyResponse) -> Text:
    return stored_json.compress_if_large(
        worded(said.status, said.encoded_body.decode(), said.headers)
    )


def untold(answer: Answer) -> Text:
    return stored_json.encode_stored({"body": answer.body, "notices": list(answer.notices)})


def read(text: Text) -> LegacyResponse | Answer:
    if stored_json.is_starting_with(text, _UNTOLD):
        its: Any = stored_json.value(text)
        return Answer(its["body"], tuple(its["notices"]))
    status, body, headers = words(text)
    return LegacyResponse(status, {}, headers, chunks=[body.encode()])
