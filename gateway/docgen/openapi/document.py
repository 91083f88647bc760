"""Builds the OpenAPI 3.1 document of the legacy interface from the gateway's own tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_type_hints

from gateway.config.settings import Server, build_url
from gateway.docgen.examples import EXAMPLE_BODIES, EXAMPLE_IDS
from gateway.docgen.openapi.descriptions import (
    ADDITIONAL_STATUSES,
    BODY_CONSTRAINTS,
    PARAMETERS,
    SEARCH_DESCRIPTIONS,
)
from gateway.docgen.openapi.schemas import Schema, SchemaBuilder
from gateway.legacy_api.routes import ID_PATTERNS
from mappings import OPERATIONS, UNLISTED, errors
from mappings.effects import Operation, Vocabulary
from mappings.vocabulary import VocabularyTranslator, build_legacy_translator, map_legacy_words

VERSION = "3.1.0"

DESCRIPTION = """The payout service's legacy interface, as the gateway answers it.

A successful request, including a delete, is answered with 200 and `ok: true`; an error with
`ok: false` and `errors`. Paths may end with a slash. Bodies are accepted with any Content-Type.
Unknown fields and parameters are ignored, and an empty parameter is treated as missing. Amounts are
exact decimals with two decimal places or none; a JSON number is read as it is written."""

TAG_BY_SECTION = {
    "4.1": "Recipients",
    "4.2": "Payout methods",
    "4.3": "Batches",
    "4.4": "Payments",
    "4.5": "Balances",
    "4.6": "Geography",
}

_STATUS_DESCRIPTIONS = {
    403: "The API key is missing or invalid, or is not allowed to do this.",
    404: "Not found.",
    406: "The request cannot be carried out; `errors` names each invalid field.",
    413: "The request body is too large.",
    429: "The API key has exceeded its rate limit.",
    500: "Internal error.",
}

_RATE_LIMIT_HEADERS = {
    "RateLimit-Limit": "Requests that the API key may make in an hour.",
    "RateLimit-Remaining": "Remaining requests.",
    "RateLimit-Reset": "Seconds until more requests are allowed.",
}


def build_openapi_document(vocabulary: Vocabulary, urls: tuple[str, ...]) -> dict[str, Any]:
    """Builds the document. ``urls`` are the base URLs that clients use, without ``/v1``."""
    return _DocumentBuilder(vocabulary).build(urls)


def list_public_urls(server: Server, port: int) -> tuple[str, ...]:
    """Returns the base URLs that clients use: the configured ones, else the listening address."""
    # A wildcard address is not an address that clients can use.
    host = "localhost" if server.host in ("0.0.0.0", "::", "") else server.host  # noqa: S104
    return server.public_urls or (build_url(host, port, server.scheme),)


class _DocumentBuilder:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = map_legacy_words(vocabulary)
        self._spelling: VocabularyTranslator = build_legacy_translator(vocabulary)
        self._schemas = SchemaBuilder(self._words)
        self._components = self._schemas.components

    def build(self, urls: tuple[str, ...]) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = defaultdict(dict)
        for operation in (*OPERATIONS, *UNLISTED):
            # Words of the vocabulary are parts of paths too, such as the name of the wallet.
            path = re.sub("<(.*?)>", lambda word: self._words[word[1]], operation.path)
            paths[path][operation.method.lower()] = self._build_operation(operation)
        return {
            "openapi": VERSION,
            "info": {"title": "Payout service, legacy interface", "version": "1", "description": DESCRIPTION},
            "servers": [{"url": f"{url}/v1"} for url in urls],
            "security": [{"ApiKey": []}],
            "tags": [{"name": name} for name in TAG_BY_SECTION.values()],
            "paths": dict(paths),
            "components": {
                "securitySchemes": {
                    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
                },
                "headers": {name: _build_integer_header(description) for name, description in _RATE_LIMIT_HEADERS.items()},
                "responses": {f"Failure{status}": _build_error_response(status) for status in _STATUS_DESCRIPTIONS},
                "schemas": dict(sorted(self._components.items())),
            },
        }  # fmt: skip

    def _build_operation(self, operation: Operation) -> dict[str, Any]:
        is_undocumented = operation in UNLISTED
        entry: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.name.replace("_", " ").capitalize(),
            "description": "Used by clients, but not listed in the legacy document."
            if is_undocumented
            else f"Section {operation.section} of the legacy document.",
            "tags": [TAG_BY_SECTION[operation.section]],
        }
        if parameters := [
            *_iter_path_parameters(operation.path),
            *self._iter_query_parameters(operation),
        ]:
            entry["parameters"] = parameters
        if operation.body_shape is not None:
            entry["requestBody"] = self._build_request_body(operation)
        entry["responses"] = self._build_responses(operation)
        # An empty list overrides the security requirement of the whole document.
        return entry | ({"security": []} if operation.is_keyless else {})

    def _iter_query_parameters(self, operation: Operation) -> Iterator[dict[str, Any]]:
        names = get_type_hints(operation.query_shape) if operation.query_shape else ()
        for name in names:
            # A copy: pop and the enum below would change the table for the next operation.
            schema = dict(PARAMETERS[name])
            if "enum" in schema:
                schema["enum"] = [self._words.get(word, word) for word in schema["enum"]]
            description = (
                SEARCH_DESCRIPTIONS[operation.name]
                if name == "search"
                else schema.pop("description", "")
            )
            described = {"description": description} if description else {}
            yield {"name": name, "in": "query", "schema": schema, **described}

    def _build_request_body(self, operation: Operation) -> dict[str, Any]:
        schema = self._schemas.build_schema(operation.body_shape)
        # Added with allOf: the shape is a shared component and must not change.
        if constraints := BODY_CONSTRAINTS.get(operation.name):
            schema = {"allOf": [schema, constraints]}
        example = self._spelling.translate_from_neutral(
            operation.body_shape, EXAMPLE_BODIES[operation.name]
        )
        return {"required": True, "content": _build_json_content(schema, example=example)}

    def _build_responses(self, operation: Operation) -> dict[str, Any]:
        # Success is always 200 in the legacy interface, for deletes too.
        schema = self._build_answer_reference(operation.answer_shape)
        responses: dict[str, Any] = {
            "200": {
                "description": "Success.",
                "headers": {
                    name: {"$ref": f"#/components/headers/{name}"} for name in _RATE_LIMIT_HEADERS
                },
                "content": _build_json_content(schema),
            }
        }
        for status in list_error_statuses(operation):
            responses[str(status)] = {"$ref": f"#/components/responses/Failure{status}"}
        return responses

    def _build_answer_reference(self, shape: Any) -> Schema:
        """Returns a reference to the schema of an answer: ``ok`` and the fields of the shape."""
        name = shape.__name__ if shape.__name__.endswith("Answer") else f"{shape.__name__}Answer"
        if name not in self._components:
            answer_schema = self._schemas.build_object_schema(shape)
            answer_schema["properties"] = {"ok": {"const": True}, **answer_schema["properties"]}
            answer_schema["required"] = ["ok", *answer_schema.get("required", [])]
            self._components[name] = answer_schema
            self._schemas.shapes[name] = shape
        return {"$ref": f"#/components/schemas/{name}"}


def list_error_statuses(operation: Operation) -> list[int]:
    """Returns the error statuses of an operation (legacy interface, sections 4 and 7)."""
    path_statuses = [404] if "{" in operation.path else []
    body_statuses = [406, 413] if operation.body_shape is not None else []
    key_statuses = [] if operation.is_keyless else [403]
    return sorted(
        {
            *key_statuses,
            *path_statuses,
            *body_statuses,
            # Every operation can exceed the rate limit or fail.
            429,
            500,
            *ADDITIONAL_STATUSES.get(operation.name, ()),
        }
    )


def _iter_path_parameters(path: str) -> Iterator[dict[str, Any]]:
    parts = path.split("/")
    for holder, part in pairwise(parts):
        if part.startswith("{"):
            yield {
                "name": part.strip("{}"),
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^{ID_PATTERNS[holder]}$"},
                "example": EXAMPLE_IDS[holder],
            }


def _build_json_content(schema: Schema, **example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, **example}}


def _build_integer_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "integer"}}


def _build_error_response(status: int) -> dict[str, Any]:
    """Builds the error response of a status with its codes (legacy interface, section 7)."""
    # 413 has no code of its own in the legacy error table.
    codes = [
        code for code, code_status in errors.STATUS_BY_CODE.items() if code_status == status
    ] or [errors.BODY_TOO_LARGE.code]
    entry: Schema = {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "enum": codes},
            "message": {"type": "string"},
            "field": {"type": "string", "description": "The field, as named in the request."},
        },
    }
    schema: Schema = {
        "type": "object",
        "required": ["ok", "errors"],
        "properties": {
            "ok": {"const": False},
            "errors": {"type": "array", "minItems": 1, "items": entry},
        },
    }
    response: dict[str, Any] = {
        "description": _STATUS_DESCRIPTIONS[status],
        "content": _build_json_content(schema),
    }
    if status == 429:
        response["headers"] = {
            "Retry-After": _build_integer_header("Seconds to wait before the next request.")
        }
    return response
