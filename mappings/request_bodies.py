"""Validation of legacy request bodies against the shapes of their operations.

A shape is compiled once to functions that validate a value, normalize it and leave out what is
invalid, so that all problems of a body are reported together, by the client's own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator
from typing_extensions import is_typeddict

from mappings.failures import MAX_ERRORS, Invalid, Problem
from mappings.field_types import InvalidValue, build_missing_error
from mappings.lazy_sequences import LazySequence, SerializedSequence

FIELDS_THAT_MAY_BE_EMPTY = frozenset({"street2"})
"""Fields in which an empty string is a value (legacy interface, section 2, address)."""

Place = tuple[str | int, ...]
"""Names and indexes, from the body to a value in it."""


def parse_body(
    shape: Any, body: Any, problems: BodyProblems | None = None
) -> tuple[Any, tuple[Problem, ...]]:
    """Returns the normalized body without its invalid values, and a problem for each of these.

    Problems name the client's own fields; ``problems`` collects them. Raises Invalid if the body is
    not an object, if a required field is missing, or if there are more than ``MAX_ERRORS`` problems.
    """
    if not isinstance(body, dict):
        raise Invalid(Problem("invalid_field", "The body must be a JSON object."))
    problems = problems or BodyProblems()
    value = compile_body_parser(shape)(body, (), problems)
    if problems.is_body_unusable or problems.omitted_count:
        raise Invalid(*problems.found, omitted_count=problems.omitted_count)
    return value, tuple(problems.found)


@dataclass(slots=True)
class BodyProblems:
    """The problems of a body: the first ``MAX_ERRORS``, and the number of further ones.

    Further ones are not built, which keeps a hostile body cheap. ``is_body_unusable`` means that a
    required field is missing or was removed; ``has_unknown_fields``, that the body has fields that
    are not in its shape, and were left out.
    """

    found: list[Problem] = field(default_factory=list)
    omitted_count: int = 0
    is_body_unusable: bool = False
    has_unknown_fields: bool = False

    def add_problem(self, place: Place, error: InvalidValue) -> None:
        if len(self.found) == MAX_ERRORS:
            self.omitted_count += 1
            return
        name = format_field_path(place)
        self.found.append(Problem(error.code, f"{name} {error}.", name))


NestedParser = Callable[[Any, Place, BodyProblems], Any]
"""Parses an object or a list. Raises InvalidValue if the value is neither."""


class _ValueParser(NamedTuple):
    """How to parse a value: with a NestedParser, or with a function of ``field_types``."""

    parse: Callable[..., Any]
    is_nested: bool
    is_nullable: bool = False


@cache
def compile_body_parser(shape: Any) -> NestedParser:
    """Compiles the parser of an object; those of all operations are compiled at import."""
    hints = get_type_hints(shape, include_extras=True)
    # Statements instead of a loop over the fields: a body may have a hundred thousand objects.
    lines = [
        "def parse_object(value, place, problems):",
        " if not isinstance(value, dict): raise InvalidValue('must be an object')",
        " fields, known_count = {}, 0",
    ]
    bound: dict[str, Any] = {
        "InvalidValue": InvalidValue,
        "build_missing_error": build_missing_error,
    }
    for number, (name, hint) in enumerate(hints.items()):
        parser, is_required = _compile_value_parser(hint), name in shape.__required_keys__
        bound[f"parse_{number}"] = parser.parse
        more_arguments = f", place + ({name!r},), problems" if parser.is_nested else ""
        statements = [("", f"fields[{name!r}] = parse_{number}(item{more_arguments})")]
        if parser.is_nullable:
            statements.insert(0, ("item is None", f"fields[{name!r}] = None"))
        # Clients send "" for a field that they leave out.
        if is_required or name not in FIELDS_THAT_MAY_BE_EMPTY:
            missing_statement = "raise build_missing_error()" if is_required else "pass"
            statements.insert(0, ("item == ''", missing_statement))
        condition, item = f"{name!r} in value", f"value[{name!r}]"
        if is_required:
            condition, item = "True", f"value.get({name!r}, '')"
        lines += [
            f" if {condition}:",
            f"  item = {item}",
            f"  known_count += {name!r} in value",
            "  try:",
            "   if False: pass",
            *(f"   {f'elif {check}' if check else 'else'}: {text}" for check, text in statements),
            "  except InvalidValue as error:",
            f"   problems.add_problem((*place, {name!r}), error)",
            f"   problems.is_body_unusable |= {is_required}",
        ]
    lines += [" if known_count < len(value): problems.has_unknown_fields = True", " return fields"]
    exec("\n".join(lines), bound)  # noqa: S102 - made of shapes only
    parser_of_shape: NestedParser = bound["parse_object"]
    return parser_of_shape


def _compile_value_parser(hint: Any) -> _ValueParser:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        validators = (each.func for each in arguments[1:] if isinstance(each, BeforeValidator))
        validate: Any = next(validators, None)
        if validate is None:
            return _compile_value_parser(arguments[0])
        return _ValueParser(validate, is_nested=False)
    # The unions are optional types.
    if origin in (Union, UnionType):
        (member,) = (each for each in arguments if each is not type(None))
        return _compile_value_parser(member)._replace(is_nullable=True)
    if origin is list:
        return _ValueParser(_compile_list_parser(arguments[0]), is_nested=True)
    if is_typeddict(hint):
        return _ValueParser(compile_body_parser(hint), is_nested=True)
    raise TypeError(f"{hint} is no type of a field in a body")


def _compile_list_parser(hint: Any) -> NestedParser:
    parse, is_nested, _ = _compile_value_parser(hint)

    def parse_items(items: Any, place: Place, problems: BodyProblems) -> Iterator[Any]:
        for number, item in enumerate(items):
            try:
                yield parse(item, (*place, number), problems) if is_nested else parse(item)
            except InvalidValue as error:
                problems.add_problem((*place, number), error)
                # An empty object keeps the positions of the others; an id has no such value.
                problems.is_body_unusable |= not is_nested
                yield {}

    def parse_list(value: Any, place: Place, problems: BodyProblems) -> Any:
        if value is None:
            raise build_missing_error()
        # Clients that send an object back send its lists as pages.
        if isinstance(value, dict):
            value = value.get(place[-1])
        if not isinstance(value, list | LazySequence):
            raise InvalidValue("must be a list")
        items = parse_items(value, place, problems)
        return SerializedSequence(items) if isinstance(value, LazySequence) else [*items]

    return parse_list


def format_field_path(place: Place) -> str:
    """Formats ``("payments", 3, "sourceAmount")`` as ``payments[3].sourceAmount``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
