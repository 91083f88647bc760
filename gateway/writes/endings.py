"""How a request ended, as the journal keeps it for the retry of a client that did not hear of it.

What was on its way to a client is kept as it was told, word for word. What was played to its end
without one is kept as the flow has it: only a retry says in which spelling of an id its client asks.
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
"""How a text begins that nobody was told; the others are lists."""


def worded(status: int, body: str, headers: Mapping[str, str]) -> str:
    """An answer as it was told, whichever service's it was."""
    return json.dumps([status, body, dict(headers)])


def words(text: Text) -> tuple[int, str, dict[str, str]]:
    """What is in such a text."""
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
