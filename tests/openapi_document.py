"""The OpenAPI 3.1 document of the legacy interface, from which requests are generated.

Pydantic's schemas of the shapes of `mappings`, with the texts and constraints of `openapi.toml`. Answers are checked
against it, and it against the legacy document.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from gateway.legacy_api.routes import ID_PATTERNS
from mappings import OPERATIONS, UNLISTED, errors, geography, legacy
from mappings.effects import Operation, Vocabulary
from mappings.field_types import Id, Word, WordKey
from mappings.vocabulary import build_legacy_translator, map_legacy_words
from tests.request_examples import EXAMPLE_BODIES, EXAMPLE_IDS

Schema = dict[str, Any]

TABLES: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("openapi.toml").read_text(encoding="utf-8")
)
FIELDS: Mapping[str, Schema] = {
    **{name: {"examples": [example]} for name, example in TABLES["examples"].items()},
    **TABLES["fields"],
}
SHAPES: Mapping[str, Any] = {
    name: shape
    for module in (geography, legacy)
    for name, shape in vars(module).items()
    if is_typeddict(shape)
}
"""By name, which is that of its schema."""

_REFERENCE = "#/components/schemas/{model}"
_REPLACED_SHAPES = {"ListedPayment.recipient": {"$ref": _REFERENCE.format(model="BatchRecipient")}}
"""Fields whose real shape differs from the declared one, because a TypedDict cannot express it."""

_COLLECTION_BY_KIND = {"recipient": "recipients", "batch": "batches", "payment": "payments"}


def build_openapi_document() -> dict[str, Any]:
    """Builds the document, in the default vocabulary."""
    vocabulary = Vocabulary()
    words = map_legacy_words(vocabulary)
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in (*OPERATIONS, *UNLISTED):
        # Words of the vocabulary are parts of paths too, such as the name of the wallet.
        path = re.sub("<(.*?)>", lambda word: words[word[1]], operation.path)
        paths[path][operation.method.lower()] = _build_operation(operation, vocabulary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Payout service, legacy interface", "version": "1", "description": TABLES["description"]},
        "servers": [{"url": "http://gateway.example/v1"}],
        "security": [{"ApiKey": []}],
        "tags": [{"name": name} for name in TABLES["tags"].values()],
        "paths": dict(paths),
        "components": {
            "securitySchemes": {"ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
            "headers": {name: _build_integer_header(text) for name, text in TABLES["headers"].items()},
            "responses": {f"Failure{status}": _build_error_response(status) for status in TABLES["errors"]},
            "schemas": dict(sorted(build_schemas(words).items())),
        },
    }  # fmt: skip


class _Schemas(GenerateJsonSchema):
    """With those of values from the table, and without a title for each field, which would repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        validator = schema["function"]["function"].__name__
        return dict(TABLES["validators"].get(validator) or super().function_before_schema(schema))


def build_schemas(words: Mapping[str, str]) -> dict[str, Schema]:
    """Builds the schemas of all shapes that operations use, and of each answer with its ``ok``."""
    operations = (*OPERATIONS, *UNLISTED)
    bodies = [operation.body_shape for operation in operations if operation.body_shape is not None]
    answers = dict.fromkeys(operation.answer_shape for operation in operations)
    _, document = TypeAdapter.json_schemas(
        [(shape, "validation", TypeAdapter(shape)) for shape in (*bodies, *answers, legacy.BatchRecipient)],
        ref_template=_REFERENCE,
        schema_generator=_Schemas,
    )  # fmt: skip
    schemas: dict[str, Schema] = document["$defs"]
    for name, schema in schemas.items():
        # Docstrings are for developers.
        schema.pop("description", None)
        del schema["title"]
        schema["properties"] = {
            _find_configured_field_name(field, hint, words): _complete_field_schema(
                SHAPES[name], field, hint, schema["properties"][field], words
            )
            for field, hint in get_type_hints(SHAPES[name], include_extras=True).items()
        }
    for shape in answers:
        schema = schemas[shape.__name__]
        schemas[_name_answer_schema(shape)] = {
            **schema,
            "properties": {"ok": {"const": True}, **schema["properties"]},
            "required": ["ok", *schema.get("required", ())],
        }
    return schemas


def _name_answer_schema(shape: Any) -> str:
    return f"{shape.__name__.removesuffix('Answer')}Answer"


def _find_configured_field_name(name: str, hint: Any, words: Mapping[str, str]) -> str:
    return next((words[mark.name] for mark in _iter_marks(hint) if isinstance(mark, WordKey)), name)


def _complete_field_schema(
    shape: Any, name: str, hint: Any, schema: Schema, words: Mapping[str, str]
) -> Schema:
    qualified_names = [f"{holder}.{name}" for holder in _list_shape_and_base_names(shape)]
    if replacement := _find_by_first_known_name(_REPLACED_SHAPES, qualified_names):
        return dict(replacement)
    schema = _merge_null(schema)
    for mark in _iter_marks(hint):
        if isinstance(mark, Id):
            collection = _COLLECTION_BY_KIND[mark.kind]
            schema.get("items", schema).update(
                pattern=f"^{ID_PATTERNS[collection]}$", examples=[EXAMPLE_IDS[collection]]
            )
        elif isinstance(mark, Word) and "additionalProperties" not in schema:
            schema["examples"] = [words[word] for word in mark.names]
    # The most specific entry: of the shape, of one that it extends, or of the bare name.
    schema |= _find_by_first_known_name(FIELDS, [*qualified_names, name]) or {}
    if choices := _find_by_first_known_name(TABLES["enums"], qualified_names):
        # An enum without null would forbid a nullable field to be null.
        null_choice = [None] if "null" in schema["type"] else []
        schema["enum"] = [words.get(word, word) for word in choices] + null_choice
    return schema


def _merge_null(schema: Schema) -> Schema:
    """Writes an alternative of one plain type and null as a list of types."""
    match schema.get("anyOf"):
        case [{"type": str(kind)} as value, {"type": "null"}]:
            return {**value, "type": [kind, "null"]}
    return dict(schema)


def _iter_marks(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for inner in get_args(hint):
        yield from _iter_marks(inner)


def _list_shape_and_base_names(shape: Any) -> list[str]:
    """Returns the names of a shape and of the shapes it extends."""
    bases = [base for base in getattr(shape, "__orig_bases__", ()) if is_typeddict(base)]
    return [shape.__name__, *(name for base in bases for name in _list_shape_and_base_names(base))]


def _find_by_first_known_name(table: Mapping[str, Any], names: list[str]) -> Any:
    return next((table[name] for name in names if name in table), None)


def _build_operation(operation: Operation, vocabulary: Vocabulary) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.name.replace("_", " ").capitalize(),
        "description": "Used by clients, but not listed in the legacy document."
        if operation in UNLISTED
        else f"Section {operation.section} of the legacy document.",
        "tags": [TABLES["tags"][operation.section]],
    }
    if parameters := [
        *_iter_path_parameters(operation.path),
        *_iter_query_parameters(operation, map_legacy_words(vocabulary)),
    ]:
        entry["parameters"] = parameters
    if operation.body_shape is not None:
        schema: Schema = {"$ref": _REFERENCE.format(model=operation.body_shape.__name__)}
        # Added with allOf: the shape is a shared component and must not change.
        if constraints := TABLES["bodies"].get(operation.name):
            schema = {"allOf": [schema, constraints]}
        example = build_legacy_translator(vocabulary).translate_from_neutral(
            operation.body_shape, EXAMPLE_BODIES[operation.name]
        )
        content = _build_json_content(schema, example=example)
        entry["requestBody"] = {"required": True, "content": content}
    entry["responses"] = _build_responses(operation)
    # An empty list overrides the security requirement of the whole document.
    return entry | ({"security": []} if operation.is_keyless else {})


def _iter_path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for holder, part in pairwise(path.split("/")):
        if part.startswith("{"):
            yield {
                "name": part.strip("{}"),
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^{ID_PATTERNS[holder]}$"},
                "example": EXAMPLE_IDS[holder],
            }


def _iter_query_parameters(
    operation: Operation, words: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for name in get_type_hints(operation.query_shape) if operation.query_shape else ():
        # A copy: pop and the enum below would change the table for the next operation.
        schema = dict(TABLES["parameters"][name])
        if "enum" in schema:
            schema["enum"] = [words.get(word, word) for word in schema["enum"]]
        description = schema.pop("description", "")
        if name == "search":
            description = TABLES["searches"][operation.name]
        described = {"description": description} if description else {}
        yield {"name": name, "in": "query", "schema": schema, **described}


def _build_responses(operation: Operation) -> dict[str, Any]:
    # Success is always 200 in the legacy interface, for deletes too.
    schema = {"$ref": _REFERENCE.format(model=_name_answer_schema(operation.answer_shape))}
    responses: dict[str, Any] = {
        "200": {
            "description": "Success.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in TABLES["headers"]},
            "content": _build_json_content(schema),
        }
    }  # fmt: skip
    # Every operation can exceed the rate limit or fail (legacy interface, sections 4 and 7).
    statuses = {429, 500, *TABLES["statuses"].get(operation.name, ())}
    statuses |= {404} if "{" in operation.path else set()
    statuses |= {406, 413} if operation.body_shape is not None else set()
    statuses |= set() if operation.is_keyless else {403}
    for status in sorted(statuses):
        responses[str(status)] = {"$ref": f"#/components/responses/Failure{status}"}
    return responses


def _build_json_content(schema: Schema, **example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, **example}}


def _build_integer_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "integer"}}


def _build_error_response(status: str) -> dict[str, Any]:
    """Builds the error response of a status with its codes (legacy interface, section 7)."""
    # 413 has no code of its own in the legacy error table.
    codes = [
        code for code, code_status in errors.STATUS_BY_CODE.items() if str(code_status) == status
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
    response = {"description": TABLES["errors"][status], "content": _build_json_content(schema)}
    if status == "429":
        header = _build_integer_header("Seconds to wait before the next request.")
        response["headers"] = {"Retry-After": header}
    return response
