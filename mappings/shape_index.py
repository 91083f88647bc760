"""Index of the marked values in a shape, so that translating a body visits only those.

The shapes in ``legacy.py`` and ``current.py`` mark ids (``Id``) and vocabulary words (``Word`` for
a value, ``WordKey`` for a field name). The index is built once for each shape. Parts of a body
without marks are neither walked nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from mappings.effects import JSON
from mappings.field_types import Id, TextWithIds, Word, WordKey
from mappings.lazy_sequences import LazySequence, map_rows

Mark = Id | TextWithIds | Word


@dataclass(frozen=True, slots=True)
class ObjectNode:
    fields: Mapping[str, ShapeNode | None]
    word_keys: Mapping[str, str]
    """Field name to vocabulary word, for the fields whose names are words."""
    marked_fields: tuple[tuple[str, ShapeNode], ...]
    """The fields that contain marks."""


@dataclass(frozen=True, slots=True)
class ListNode:
    item: ShapeNode


@dataclass(frozen=True, slots=True)
class ValueNode:
    mark: Mark


@dataclass(frozen=True, slots=True)
class MapNode:
    """An object with arbitrary keys, such as balances by currency."""

    name: ShapeNode | None
    item: ShapeNode | None


MarkTypes = tuple[type[Mark], ...]
"""The marks to index: a search for ids need not visit words."""

WORD_MARKS: MarkTypes = (Word,)
ID_MARKS: MarkTypes = (Id, TextWithIds)

ShapeNode = ObjectNode | ListNode | MapNode | ValueNode

TextRewriter = Callable[[Any, str], str]
"""Gets a mark of the indexed types, and the text."""
FieldRenamer = Callable[[ObjectNode, str], tuple[str, str] | None]
"""Returns a field's name in the shape and its new name, or None to drop the field."""


def rewrite_marked_texts(
    node: ShapeNode | None, value: JSON, rewrite: TextRewriter, rename: FieldRenamer | None = None
) -> JSON:
    """Returns the value with all marked texts rewritten and fields renamed."""
    # Nothing below is marked: the value is passed on, even if it does not match the shape.
    if node is None:
        return value
    if isinstance(value, str):
        return rewrite(node.mark, value) if isinstance(node, ValueNode) else value
    if isinstance(value, list | LazySequence):
        # Some services send a list of the items instead of the map.
        item_node = node.item if isinstance(node, ListNode | MapNode) else None
        if not item_node:
            return value
        return map_rows(lambda item: rewrite_marked_texts(item_node, item, rewrite, rename), value)
    if not isinstance(value, dict):
        return value
    if isinstance(node, MapNode):
        return {
            rewrite_marked_texts(node.name, key, rewrite): rewrite_marked_texts(
                node.item, item, rewrite, rename
            )
            for key, item in value.items()
        }
    if isinstance(node, ListNode):
        # Some services send a list as a page: an object with the list and ``meta``.
        return {
            key: rewrite_marked_texts(node, rows, rewrite, rename)
            if isinstance(rows, list | LazySequence)
            else rows
            for key, rows in value.items()
        }
    if not isinstance(node, ObjectNode):
        return value
    # Without renaming, unmarked fields keep their place, so copying the dict is enough.
    if rename is None:
        return _rewrite_texts_of_marked_fields(node, value, rewrite)
    renamed_fields = [(rename(node, name), item) for name, item in value.items()]
    return {
        new: rewrite_marked_texts(node.fields.get(name), item, rewrite, rename)
        for (name, new), item in ((names, item) for names, item in renamed_fields if names)
    }


def _rewrite_texts_of_marked_fields(
    node: ObjectNode, value: dict[str, JSON], rewrite: TextRewriter
) -> dict[str, JSON]:
    copy = value.copy()
    for name, field_node in node.marked_fields:
        field_value = value.get(name)
        # The common case needs no function call.
        if isinstance(field_node, ValueNode) and isinstance(field_value, str):
            copy[name] = rewrite(field_node.mark, field_value)
        elif field_value is not None:
            copy[name] = rewrite_marked_texts(field_node, field_value, rewrite)
    return copy


MarkedTexts = list[tuple[Mark, str]]
TextCollector = Callable[[JSON, MarkedTexts, "LazyLists"], None]
"""Appends the marked texts of a value, and its lazy lists, unread, with their items' collector."""
LazyLists = list[tuple[TextCollector, LazySequence]]


def iterate_texts_with_ids(shape: Any, value: JSON) -> Iterator[tuple[Mark, str]]:
    """Iterates over the ids and the texts with ids in a value, with their marks.

    Lazy lists stay lazy.
    """
    collect = compile_text_collector(shape)
    if collect is None or not value:
        return iter(())
    texts: MarkedTexts = []
    lazy_lists: LazyLists = []
    collect(value, texts, lazy_lists)
    return chain(texts, _iterate_lazy_texts(lazy_lists)) if lazy_lists else iter(texts)


def _iterate_lazy_texts(lazy_lists: LazyLists) -> Iterator[tuple[Mark, str]]:
    for collect, rows in lazy_lists:
        # Collecting may append nested lazy lists to the list that is iterated over: they follow.
        for chunk in rows.iterate_slices():
            texts: MarkedTexts = []
            for item in chunk:
                collect(item, texts, lazy_lists)
            yield from texts


def _compile_collector(node: ShapeNode) -> TextCollector:
    names: dict[str, Any] = {"LazySequence": LazySequence}
    lines = ["def collect(v0, texts, lazy_lists):", *_write_collector(node, "v0", " ", names)]
    exec("\n".join(lines), names)  # noqa: S102 - made of shapes only
    collector: TextCollector = names["collect"]
    return collector


def _write_collector(
    node: ShapeNode, variable: str, indent: str, names: dict[str, Any]
) -> Iterator[str]:
    """Writes a collector: nested ``if`` and ``for`` statements in the form of the shape.

    Every response is searched for ids, and a call for each of its parts costs more than the rest.
    ``names`` gets what the statements refer to.
    """
    child, bound = f"v{len(indent)}", f"bound_{len(names)}"
    if isinstance(node, ObjectNode):
        yield f"{indent}if isinstance({variable}, dict):"
        for name, field_node in node.marked_fields:
            yield f"{indent} {child} = {variable}.get({name!r})"
            yield from _write_collector(field_node, child, f"{indent} ", names)
    elif isinstance(node, ValueNode):
        names[bound] = node.mark
        yield f"{indent}if isinstance({variable}, str):"
        yield f"{indent} texts.append(({bound}, {variable}))"
    elif isinstance(node, ListNode):
        names[bound] = _compile_collector(node.item)
        yield f"{indent}if isinstance({variable}, LazySequence):"
        yield f"{indent} lazy_lists.append(({bound}, {variable}))"
        yield f"{indent}elif isinstance({variable}, list):"
        yield f"{indent} for {child} in {variable}:"
        yield from _write_collector(node.item, child, f"{indent}  ", names)
    else:
        raise TypeError("no shape has ids in an object with arbitrary keys")


@cache
def index_shape(shape: Any, mark_types: MarkTypes) -> ShapeNode | None:
    """Builds the index of these marks in a shape; None if the shape contains none."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *annotations = get_args(shape)
        mark = next((member for member in annotations if isinstance(member, mark_types)), None)
        return ValueNode(mark) if mark else index_shape(inner, mark_types)
    # The unions are optional types: at most one member contains marks.
    if origin in (Union, UnionType):
        return next(
            (node for member in get_args(shape) if (node := index_shape(member, mark_types))), None
        )
    if origin is list:
        item = index_shape(get_args(shape)[0], mark_types)
        return ListNode(item) if item else None
    if origin is dict:
        name, item = (index_shape(member, mark_types) for member in get_args(shape))
        return MapNode(name, item) if name or item else None
    return _index_object(shape, mark_types) if is_typeddict(shape) else None


@cache
def compile_text_collector(shape: Any) -> TextCollector | None:
    """Compiles the search for ids in a shape; None if the shape contains none."""
    node = index_shape(shape, ID_MARKS)
    return None if node is None else _compile_collector(node)


def _index_object(shape: Any, mark_types: MarkTypes) -> ObjectNode | None:
    hints = get_type_hints(shape, include_extras=True)
    fields = {name: index_shape(hint, mark_types) for name, hint in hints.items()}
    word_keys = {
        name: mark.name
        for name, hint in hints.items()
        if Word in mark_types and get_origin(hint) is Annotated
        for mark in get_args(hint)[1:]
        if isinstance(mark, WordKey)
    }
    marked_fields = tuple((name, node) for name, node in fields.items() if node)
    return ObjectNode(fields, word_keys, marked_fields) if word_keys or marked_fields else None
