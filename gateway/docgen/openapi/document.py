"""Builds the OpenAPI 3.1 document of the legacy interface from the gateway's own tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, get_type_hints

from gateway.config.settings import Server, build_url
from gateway.docgen.openapi.descriptions import ALSO, NEEDS, PARAMETERS, SEARCHED
from gateway.docgen.openapi.examples import BODIES, IDS, build_schema_example
from gateway.docgen.openapi.schemas import Schema, Schemas
from gateway.legacy_api.routes import KINDS
from mappings import OPERATIONS, UNLISTED, errors
from mappings.grammar import Operation, Vocabulary
from mappings.spelling import Spelling, build_legacy_spelling, map_legacy_words

VERSION = "3.1.0"

ABOUT = """The payout service's legacy interface, as the gateway answers it.

A successful request, including a delete, is answered with 200 and `ok: true`; an error with
`ok: false` and `errors`. Paths may end with a slash. Bodies are accepted with any Content-Type.
Unknown fields and parameters are ignored, and an empty parameter is treated as missing. Amounts are
exact decimals with two decimal places or none; a JSON number is read as it is written."""

TAGS = {
    "4.1": "Recipients",
    "4.2": "Payout methods",
    "4.3": "Batches",
    "4.4": "Payments",
    "4.5": "Balances",
    "4.6": "Geography",
}

_SAID = {
    403: "The API key is missing or invalid, or is not allowed to do this.",
    404: "Not found.",
    406: "The request cannot be carried out; `errors` names each invalid field.",
    413: "The request body is too large.",
    429: "The API key has exceeded its rate limit.",
    500: "Internal error.",
}

_LIMIT_HEADERS = {
    "RateLimit-Limit": "Requests that the API key may make in an hour.",
    "RateLimit-Remaining": "Remaining requests.",
    "RateLimit-Reset": "Seconds until more requests are allowed.",
}


def build_openapi_document(vocabulary: Vocabulary, urls: tuple[str, ...]) -> dict[str, Any]:
    """Builds the document. ``urls`` are the base URLs that clients use, without ``/v1``."""
    return _Document(vocabulary).whole(urls)


def list_public_urls(server: Server, port: int) -> tuple[str, ...]:
    """The base URLs that clients use: the configured ones, else the listening address."""
    # A wildcard address is not an address that clients can use.
    host = "localhost" if server.host in ("0.0.0.0", "::", "") else server.host  # noqa: S104
    return server.public_urls or (build_url(host, port, server.scheme),)


class _Document:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = map_legacy_words(vocabulary)
        self._spelling: Spelling = build_legacy_spelling(vocabulary)
        self._schemas = Schemas(self._words)
        self._components = self._schemas.components

    def whole(self, urls: tuple[str, ...]) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = defaultdict(dict)
        for operation in (*OPERATIONS, *UNLISTED):
            path = re.sub("<(.*?)>", lambda word: self._words[word[1]], operation.path)
            paths[path][operation.method.lower()] = self._operation(operation)
        return {
            "openapi": VERSION,
            "info": {"title": "Payout service, legacy interface", "version": "1", "description": ABOUT},
            "servers": [{"url": f"{url}/v1"} for url in urls],
            "security": [{"ApiKey": []}],
            "tags": [{"name": name} for name in TAGS.values()],
            "paths": dict(paths),
            "components": {
                "securitySchemes": {
                    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
                },
                "headers": {name: _header(said) for name, said in _LIMIT_HEADERS.items()},
                "responses": {f"Failure{status}": _failure(status) for status in _SAID},
                "schemas": dict(sorted(self._components.items())),
            },
        }  # fmt: skip

    def _operation(self, operation: Operation) -> dict[str, Any]:
        unlisted = operation in UNLISTED
        told: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.name.replace("_", " ").capitalize(),
            "description": "Used by clients, but not listed in the legacy document."
            if unlisted
            else f"Section {operation.section} of the legacy document.",
            "tags": [TAGS[operation.section]],
        }
        if parameters := [*_in_path(operation.path), *self._in_query(operation)]:
            told["parameters"] = parameters
        if operation.takes is not None:
            told["requestBody"] = self._body(operation)
        told["responses"] = self._responses(operation)
        return told | ({"security": []} if operation.keyless else {})

    def _in_query(self, operation: Operation) -> Iterator[dict[str, Any]]:
        names = get_type_hints(operation.query) if operation.query else ()
        for name in names:
            schema = dict(PARAMETERS[name])
            if "enum" in schema:
                schema["enum"] = [self._words.get(word, word) for word in schema["enum"]]
            said = SEARCHED[operation.name] if name == "search" else schema.pop("description", "")
            told = {"description": said} if said else {}
            yield {"name": name, "in": "query", "schema": schema, **told}

    def _body(self, operation: Operation) -> dict[str, Any]:
        schema = self._schemas.of(operation.takes)
        # Added with allOf: the shape is a shared component and must not change.
        if needs := NEEDS.get(operation.name):
            schema = {"allOf": [schema, needs]}
        example = self._spelling.outward(operation.takes, BODIES[operation.name])
        return {"required": True, "content": _content(schema, example)}

    def _responses(self, operation: Operation) -> dict[str, Any]:
        # Success is always 200 in the legacy interface, for deletes too.
        schema = self._answer(operation.gives)
        told: dict[str, Any] = {
            "200": {
                "description": "Success.",
                "headers": {
                    name: {"$ref": f"#/components/headers/{name}"} for name in _LIMIT_HEADERS
                },
                "content": _content(schema, build_schema_example(schema, self._components)),
            }
        }
        for status in list_error_statuses(operation):
            told[str(status)] = {"$ref": f"#/components/responses/Failure{status}"}
        return told

    def _answer(self, shape: Any) -> Schema:
        """The schema of an answer: ``ok`` and the fields of the shape."""
        name = shape.__name__ if shape.__name__.endswith("Answer") else f"{shape.__name__}Answer"
        if name not in self._components:
            given = self._schemas.object_of(shape)
            given["properties"] = {"ok": {"const": True}, **given["properties"]}
            given["required"] = ["ok", *given.get("required", [])]
            self._components[name] = given
            self._schemas.shapes[name] = shape
        return {"$ref": f"#/components/schemas/{name}"}


def list_error_statuses(operation: Operation) -> list[int]:
    """The error statuses of an operation (legacy interface, sections 4 and 7)."""
    named = [404] if "{" in operation.path else []
    sent = [406, 413] if operation.takes is not None else []
    known = [] if operation.keyless else [403]
    return sorted({*known, *named, *sent, 429, 500, *ALSO.get(operation.name, ())})


def _in_path(path: str) -> Iterator[dict[str, Any]]:
    parts = path.split("/")
    for holder, part in pairwise(parts):
        if part.startswith("{"):
            yield {
                "name": part.strip("{}"),
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^{KINDS[holder]}$"},
                "example": IDS[holder],
            }


def _content(schema: Schema, example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, "example": example}}


def _header(said: str) -> dict[str, Any]:
    return {"description": said, "schema": {"type": "integer"}}


def _failure(status: int) -> dict[str, Any]:
    """The error response of a status, with its error codes (legacy interface, section 7)."""
    # 413 has no code of its own in the legacy error table.
    codes = [code for code, its in errors.STATUS.items() if its == status] or [
        errors.TOO_LARGE.code
    ]
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
    example = {"ok": False, "errors": [_example_entry(codes[0], status)]}
    told: dict[str, Any] = {"description": _SAID[status], "content": _content(schema, example)}
    if status == 429:
        told["headers"] = {"Retry-After": _header("Seconds to wait before the next request.")}
    return told


def _example_entry(code: str, status: int) -> Mapping[str, str]:
    field = {"field": "payments[0].sourceAmount"} if status == 406 else {}
    return {"code": code, "message": _SAID[status], **field}
