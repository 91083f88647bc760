"""Encodes requests for storage, and decodes them for a replay."""

from __future__ import annotations

from datetime import datetime

from gateway.payloads import stored_json
from gateway.payloads.stored_json import StoredText
from mappings.effects import (
    LegacyOptions,
    Request,
)


def encode_request(request: Request) -> StoredText:
    options = {name: getattr(request.options, name) for name in LegacyOptions.__dataclass_fields__}
    encoded = {
        "now": request.now.isoformat(),
        # A replay must derive the same ids, so the seed is stored; like the body, it is encrypted.
        "seed": request.seed,
        "ids": dict(request.ids),
        "query": dict(request.query),
        "body": request.body,
        # Named as by older versions, whose requests may still have to be replayed.
        "manners": options,
    }
    return stored_json.encode_value(encoded)


def decode_request(text: StoredText) -> Request:
    encoded = stored_json.decode_value(text)
    return Request(
        now=datetime.fromisoformat(encoded["now"]),
        seed=encoded["seed"],
        ids=encoded["ids"],
        query=encoded["query"],
        body=encoded["body"],
        options=LegacyOptions(**encoded["manners"]),
    )
