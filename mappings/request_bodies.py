"""Validation of legacy request bodies against the shapes of their operations.

pydantic walks the shape, so the location of an error is already the client's own field. Invalid
values are left out of the result, so that all problems of a body are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from mappings.failures import MAX_ERRORS, Invalid, Problem
from mappings.json_levels import list_nested_items
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence, LazySequence

FIELDS_THAT_MAY_BE_EMPTY = frozenset({"street2"})
"""Fields in which an empty string is a value (legacy interface, section 2, address)."""


_NESTED_TYPES = (dict, list)
"""A tuple, because `dict | list` would build a new union for each field."""


def drop_empty_fields(body: Any) -> Any:
    """Drops fields with ``""``, which clients send for fields that they leave out."""
    level = [body]
    while level:
        if "" in level:
            return _copy_without_empty_fields(body)
        level = list_nested_items(level)
    return body


def _copy_without_empty_fields(body: Any) -> Any:
    if isinstance(body, dict):
        fields = body.copy()
        for name, value in body.items():
            # Only nested values need a function call, because most fields are text.
            if isinstance(value, _NESTED_TYPES):
                fields[name] = _copy_without_empty_fields(value)
            elif value == "" and name not in FIELDS_THAT_MAY_BE_EMPTY:
                del fields[name]
        return fields
    if isinstance(body, list):
        return [*map(_copy_without_empty_fields, body)]
    return body


@cache
def build_type_adapter(shape: Any) -> TypeAdapter[Any]:
    """Returns the validator of a shape; those of all operations are built at import."""
    return TypeAdapter(shape)


def parse_body(shape: Any, body: Any) -> tuple[Any, tuple[Problem, ...]]:
    """Returns the normalized body without its invalid values, and a problem for each of these.

    Problems name the client's own fields. Raises Invalid if the body is not an object, if a
    required field is missing, or if there are more than ``MAX_ERRORS`` problems.
    """
    if not isinstance(body, dict):
        raise Invalid(Problem("invalid_field", "The body must be a JSON object."))
    parser = _BodyParser(shape)
    value = parser.parse(body)
    problems = tuple(dict.fromkeys(problem for found in parser.problem_rounds for problem in found))
    # Beyond the limit the rest was not validated, so the body must not reach a flow.
    if parser.has_too_many_problems:
        raise Invalid(*problems, omitted_count=parser.omitted_count)
    if parser.missing_fields:
        # A field that was invalid and therefore removed is missing now, but already reported.
        missing_by_field = {missing.field: missing for missing in parser.missing_fields}
        reported_fields = {re.split(r"[.\[]", missing.field or "")[0] for missing in problems}
        absent = [
            missing for name, missing in missing_by_field.items() if name not in reported_fields
        ]
        raise Invalid(*problems, *absent)
    return value, problems


def _is_long_list(value: Any) -> bool:
    return isinstance(value, LazySequence) or (isinstance(value, list) and len(value) > SLICE_SIZE)


def _slice_list(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + SLICE_SIZE] for start in range(0, len(items), SLICE_SIZE))


def _extract_list_from_page(name: str, value: Any) -> Any:
    """Returns the list inside a page: clients that send an object back send lists as pages."""
    if isinstance(value, dict) and isinstance(value.get(name), list | LazySequence):
        return value[name]
    return value


@dataclass(slots=True)
class _BodyParser:
    """Validates a body repeatedly, each time without the invalid values of the previous round.

    ``problem_rounds`` collects the problems of each round, over all slices of the long lists.
    """

    shape: Any
    problem_rounds: list[list[Problem]] = field(default_factory=list)
    missing_fields: list[Problem] = field(default_factory=list)
    omitted_count: int = 0
    """Problems found after ``MAX_ERRORS``: counted, but not built."""

    @property
    def has_too_many_problems(self) -> bool:
        return sum(map(len, self.problem_rounds)) + len(self.missing_fields) > MAX_ERRORS

    def parse(self, body: dict[str, Any]) -> Any:
        """Returns the normalized body; long lists are validated in slices to bound the memory."""
        body = {name: _extract_list_from_page(name, value) for name, value in body.items()}
        long_lists = {name: value for name, value in body.items() if _is_long_list(value)}
        # An empty list takes the place of each long one, so that its presence is still validated.
        value = self._parse_slice(
            self.shape, drop_empty_fields({**body, **{name: [] for name in long_lists}})
        )
        for name, rows in long_lists.items():
            if value and name in value:
                items = self._parse_list_in_slices(name, rows)
                result = CompressedSequence(items) if isinstance(rows, LazySequence) else [*items]
                # A list with a part that could not be repaired is removed as a whole, like any
                # invalid value.
                value |= {name: result} if len(result) == len(rows) else {name: None}
        return value

    def _parse_list_in_slices(self, name: str, rows: LazySequence | list[Any]) -> Iterator[Any]:
        shape, start = get_type_hints(self.shape, include_extras=True)[name], 0
        slices = rows.iterate_slices() if isinstance(rows, LazySequence) else _slice_list(rows)
        for chunk in slices:
            yield from self._parse_slice(shape, drop_empty_fields(chunk), (name, start)) or []
            start += len(chunk)

    def _parse_slice(self, shape: Any, body: Any, offset: tuple[str, int] | None = None) -> Any:
        """Normalizes a body, or a slice of a list at ``offset``; None if it cannot be repaired."""
        reported: set[Problem] = set()
        round_number = 0
        # Problems beyond the limit are only counted, which keeps a hostile body cheap.
        is_counted_only = self.has_too_many_problems
        while True:
            try:
                return build_type_adapter(shape).validate_python(body)
            except ValidationError as error:
                if is_counted_only:
                    self.omitted_count += error.error_count()
                    return None
                errors = error.errors(include_url=False, include_context=False, include_input=False)
            invalid = [detail for detail in errors if detail["type"] != "missing"]
            if not invalid:
                self.missing_fields += [_build_problem(detail, offset) for detail in errors]
                return None
            places = [detail["loc"] for detail in invalid]
            problems = [_build_problem(detail, offset) for detail in invalid]
            # No new problem: removing these values did not help, so a larger part must go.
            if reported.issuperset(problems):
                if offset:
                    return None  # An item that is not an object cannot be replaced by an empty one.
                # The emptied value was still invalid: remove the whole top-level field.
                places = [place[:1] for place in places]
            reported.update(problems)
            self.problem_rounds += [[]] if round_number == len(self.problem_rounds) else []
            self.problem_rounds[round_number] += problems
            round_number += 1
            body = _remove_values_at_places(body, places)


def _remove_values_at_places(value: Any, places: list[tuple[int | str, ...]]) -> Any:
    """Removes the values at these places; replaces list items by ``{}`` to keep the positions."""
    if not isinstance(value, dict | list):
        return value
    inner: dict[int | str, list[tuple[int | str, ...]]] = {}
    for place in places:
        if place:
            inner.setdefault(place[0], []).append(place[1:])
    if isinstance(value, list):
        return [
            _remove_nested_places(item, inner.get(number, []), {})
            for number, item in enumerate(value)
        ]
    fields = {
        name: _remove_nested_places(item, inner.get(name, []), _REMOVED)
        for name, item in value.items()
    }
    return {name: item for name, item in fields.items() if item is not _REMOVED}


_REMOVED = object()


def _remove_nested_places(value: Any, paths: list[tuple[int | str, ...]], default: Any) -> Any:
    if not paths:
        return value
    return (
        _remove_values_at_places(value, paths)
        if all(paths) and isinstance(value, dict | list)
        else default
    )


def _build_problem(error: Mapping[str, Any], offset: tuple[str, int] | None = None) -> Problem:
    """Builds the problem of a pydantic error; ``offset`` is the list and the start of the slice."""
    place = error["loc"]
    if offset:
        place = (offset[0], place[0] + offset[1], *place[1:])
    name = format_field_path(place)
    if error["type"] in ("missing", "empty_field"):
        return Problem("empty_field", f"{name} is required.", name)
    fault = error["msg"] if error["type"] == "invalid_field" else "has a value of the wrong type"
    return Problem("invalid_field", f"{name} {fault}.", name)


def format_field_path(place: tuple[str | int, ...]) -> str:
    """Formats ``("payments", 3, "sourceAmount")`` as ``payments[3].sourceAmount``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
