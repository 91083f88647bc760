"""Example legacy requests for the migration guide, one per operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.config.settings import Settings
from gateway.docgen.openapi.examples import EXAMPLE_BODIES, EXAMPLE_IDS
from mappings.effects import JSON, Operation
from mappings.vocabulary import build_legacy_translator, map_legacy_words


@dataclass(frozen=True, slots=True)
class RequestExample:
    """An example of a legacy request."""

    method: str
    target: str
    body: JSON


def build_request_example(settings: Settings, operation: Operation) -> RequestExample:
    """Builds a made-up request of an operation, in the configured vocabulary."""
    vocabulary = settings.vocabulary.build_vocabulary()
    words = map_legacy_words(vocabulary)
    parts: list[str] = []
    for part in operation.path.split("/"):
        word = words[part.strip("<>")] if part.startswith("<") else part
        # The path segment before an id names its kind: recipients/{id}.
        parts.append(EXAMPLE_IDS[parts[-1]] if part.startswith("{") else word)
    query = "?page=1&pageSize=10" if operation.query_shape else ""
    target = f"/v1{'/'.join(parts)}{query}"
    body: Any = None
    if operation.body_shape is not None:
        body = build_legacy_translator(vocabulary).translate_from_neutral(
            operation.body_shape, EXAMPLE_BODIES[operation.name]
        )
    return RequestExample(operation.method, target, body)
