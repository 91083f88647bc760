"""Converts shapes of the legacy interface to JSON Schema (2020-12) in the configured vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import WithJsonSchema
from typing_extensions import is_typeddict

from gateway.docgen.examples import EXAMPLE_IDS
from gateway.docgen.openapi.descriptions import ENUM_VALUES, FIELDS, REPLACED_SHAPES
from gateway.legacy_api import routes
from mappings.field_types import Id, Word, WordKey

Schema = dict[str, Any]

_SCHEMA_BY_TYPE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}

COLLECTION_BY_KIND = {"recipient": "recipients", "batch": "batches", "payment": "payments"}
"""The path segment of the collection, by kind of id."""


class SchemaBuilder:
    """Builds the schema of each shape once. ``components`` holds the named schemas."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words
        self.components: dict[str, Schema] = {}
        self.shapes: dict[str, Any] = {}
        """The shape of each component."""

    def build_schema(self, shape: Any) -> Schema:
        """Returns the schema of a shape, or a reference to its component."""
        origin, arguments = get_origin(shape), get_args(shape)
        if origin is Annotated:
            return self._build_annotated_schema(arguments[0], arguments[1:])
        if origin in (Union, UnionType):
            return _combine_schemas([self.build_schema(argument) for argument in arguments])
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.build_schema(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.build_schema(arguments[1])}
        if is_typeddict(shape):
            return self._build_component_reference(shape)
        return dict(_SCHEMA_BY_TYPE[shape])

    def _build_annotated_schema(self, annotated_shape: Any, annotations: tuple[Any, ...]) -> Schema:
        given_schema = next(
            (
                annotation.json_schema
                for annotation in annotations
                if isinstance(annotation, WithJsonSchema)
            ),
            None,
        )
        schema = self.build_schema(annotated_shape) if given_schema is None else dict(given_schema)
        for annotation in annotations:
            if isinstance(annotation, Id):
                collection = COLLECTION_BY_KIND[annotation.kind]
                schema |= {
                    "pattern": f"^{routes.ID_PATTERNS[collection]}$",
                    "examples": [EXAMPLE_IDS[collection]],
                }
            elif isinstance(annotation, Word):
                schema["examples"] = [self._words[name] for name in annotation.names]
        return schema

    def _build_component_reference(self, shape: Any) -> Schema:
        name = shape.__name__
        # References are by name only, so two shapes with one name would overwrite each other.
        if self.shapes.setdefault(name, shape) is not shape:
            raise TypeError(f"two shapes are called {name}")
        if name not in self.components:
            self.components[name] = {}  # reserved first: a shape may contain itself
            self.components[name] = self.build_object_schema(shape)
        return {"$ref": f"#/components/schemas/{name}"}

    def build_object_schema(self, shape: Any) -> Schema:
        """Returns the schema of an object, not a reference to it."""
        properties = {
            self._find_configured_field_name(name, hint): self._build_field_schema(
                shape, name, hint
            )
            for name, hint in get_type_hints(shape, include_extras=True).items()
        }
        schema: Schema = {"type": "object", "properties": properties}
        if required_fields := sorted(shape.__required_keys__):
            schema["required"] = required_fields
        return schema

    def _find_configured_field_name(self, name: str, hint: Any) -> str:
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        return next((self._words[mark.name] for mark in marks if isinstance(mark, WordKey)), name)

    def _build_field_schema(self, shape: Any, name: str, hint: Any) -> Schema:
        qualified_names = [f"{holder}.{name}" for holder in _list_shape_and_base_names(shape)]
        if replacement := _find_by_first_known_name(REPLACED_SHAPES, qualified_names):
            return self.build_schema(replacement)
        schema: Schema = {
            **self.build_schema(hint),
            # The most specific entry: of the shape, of one that it extends, or of the bare name.
            **(_find_by_first_known_name(FIELDS, [*qualified_names, name]) or {}),
        }
        if choices := _find_by_first_known_name(ENUM_VALUES, qualified_names):
            # An enum without null would forbid a nullable field to be null.
            null_choice = [None] if "null" in schema["type"] else []
            schema["enum"] = [self._words.get(word, word) for word in choices] + null_choice
        return schema


def _list_shape_and_base_names(shape: Any) -> list[str]:
    """Returns the names of a shape and of the shapes it extends."""
    bases = [base for base in getattr(shape, "__orig_bases__", ()) if is_typeddict(base)]
    return [shape.__name__, *(name for base in bases for name in _list_shape_and_base_names(base))]


def _find_by_first_known_name(table: Mapping[str, Any], names: list[str]) -> Any:
    return next((table[name] for name in names if name in table), None)


def _combine_schemas(schemas: list[Schema]) -> Schema:
    """Returns a schema for alternatives; null and one plain type become a list of types."""
    non_null = [schema for schema in schemas if schema != {"type": "null"}]
    if len(non_null) == len(schemas):
        return {"anyOf": schemas}
    # A reference has no `type` to which null could be added.
    if len(non_null) > 1 or "type" not in non_null[0]:
        return {"anyOf": [*non_null, {"type": "null"}]}
    (schema,) = non_null
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    nullable = {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    return nullable | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})
