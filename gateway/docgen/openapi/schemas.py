"""Converts shapes of the legacy interface to JSON Schema (2020-12) in the configured vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import WithJsonSchema
from typing_extensions import is_typeddict

from gateway.docgen.openapi.descriptions import CHOICES, FIELDS, INSTEAD
from gateway.docgen.openapi.examples import IDS
from gateway.legacy_api import routes
from mappings.kinds import Id, Key, Word

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}

KINDS = {"recipient": "recipients", "batch": "batches", "payment": "payments"}
"""Kinds of ids, and the path segment of their collection."""


class Schemas:
    """Builds the schema of each shape once. ``components`` holds the named schemas."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words
        self.components: dict[str, Schema] = {}
        self.shapes: dict[str, Any] = {}
        """The shape of each component."""

    def of(self, shape: Any) -> Schema:
        """The schema of a shape, or a reference to its component."""
        origin, inside = get_origin(shape), get_args(shape)
        if origin is Annotated:
            return self._marked(inside[0], inside[1:])
        if origin in (Union, UnionType):
            return _any_of([self.of(one) for one in inside])
        if origin is Literal:
            return {"type": "string", "enum": list(inside)}
        if origin is list:
            return {"type": "array", "items": self.of(inside[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(inside[1])}
        if is_typeddict(shape):
            return self._component(shape)
        return dict(_PLAIN[shape])

    def _marked(self, inner: Any, marks: tuple[Any, ...]) -> Schema:
        said = next((mark.json_schema for mark in marks if isinstance(mark, WithJsonSchema)), None)
        schema = self.of(inner) if said is None else dict(said)
        for mark in marks:
            if isinstance(mark, Id):
                collection = KINDS[mark.kind]
                schema |= {
                    "pattern": f"^{routes.KINDS[collection]}$",
                    "examples": [IDS[collection]],
                }
            elif isinstance(mark, Word):
                schema["examples"] = [self._words[name] for name in mark.names]
        return schema

    def _component(self, shape: Any) -> Schema:
        name = shape.__name__
        # References are by name only, so two shapes with one name would overwrite each other.
        if self.shapes.setdefault(name, shape) is not shape:
            raise TypeError(f"two shapes are called {name}")
        if name not in self.components:
            self.components[name] = {}  # reserved first: a shape may contain itself
            self.components[name] = self.object_of(shape)
        return {"$ref": f"#/components/schemas/{name}"}

    def object_of(self, shape: Any) -> Schema:
        """The schema of an object, not a reference to it."""
        properties = {
            self._spelled(name, hint): self._field(shape, name, hint)
            for name, hint in get_type_hints(shape, include_extras=True).items()
        }
        schema: Schema = {"type": "object", "properties": properties}
        if needed := sorted(shape.__required_keys__):
            schema["required"] = needed
        return schema

    def _spelled(self, name: str, hint: Any) -> str:
        return next((self._words[mark.name] for mark in _keys(hint)), name)

    def _field(self, shape: Any, name: str, hint: Any) -> Schema:
        places = [f"{holder}.{name}" for holder in _lineage(shape)]
        if instead := _first(INSTEAD, places):
            return self.of(instead)
        schema: Schema = {**self.of(hint), **(_first(FIELDS, [*places, name]) or {})}
        if choices := _first(CHOICES, places):
            # An enum without null would forbid a nullable field to be null.
            nothing = [None] if "null" in schema["type"] else []
            schema["enum"] = [self._words.get(word, word) for word in choices] + nothing
        return schema


def _lineage(shape: Any) -> list[str]:
    """The names of a shape and of the shapes it extends."""
    bases = [base for base in getattr(shape, "__orig_bases__", ()) if is_typeddict(base)]
    return [shape.__name__, *(name for base in bases for name in _lineage(base))]


def _first(table: Mapping[str, Any], names: list[str]) -> Any:
    return next((table[name] for name in names if name in table), None)


def _keys(hint: Any) -> Iterator[Key]:
    if get_origin(hint) is Annotated:
        yield from (mark for mark in get_args(hint)[1:] if isinstance(mark, Key))


def _any_of(schemas: list[Schema]) -> Schema:
    """A schema for alternatives; null and one plain type become a list of types."""
    others = [schema for schema in schemas if schema != {"type": "null"}]
    if len(others) == len(schemas):
        return {"anyOf": schemas}
    if len(others) > 1 or "type" not in others[0]:
        return {"anyOf": [*others, {"type": "null"}]}
    (schema,) = others
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    nullable = {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    return nullable | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})
