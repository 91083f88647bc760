"""Compares `/openapi.json` with the responses of the simulator's legacy interface.

Half of the shapes of `mappings/` have no effect on a response: they describe it. They are checked against the
responses of the legacy interface, which is independent of them, and against the lists of the legacy document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.compare.answer import Answer

Description = Mapping[str, Any]

_PAGES = ("page", "pageSize")
_FILTERS = (
    *_PAGES, "search", "status", "startDate", "endDate", "recipient", "country", "sourceCurrency",
    "targetCurrency",
)  # fmt: skip
"""What clients in the field send, which the document does not list."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "list_recipients": (
        *_PAGES, "search", "orderBy", "sortBy", "startDate", "endDate", "status",
        "complianceStatus", "country", "city", "payoutMethod", "payoutCurrency",
    ),
    "read_recipient_logs": _PAGES,
    "read_recipient_payments": _FILTERS,
    "list_batches": _FILTERS,
    "list_batch_payments": (*_PAGES, "search"),
    "list_payments": _FILTERS,
}  # fmt: skip
"""Legacy interface, sections 4.1, 4.3 and 4.4; and what clients send besides."""

KEYLESS = "read_country"
"""The one operation of section 4 whose sample call carries no key."""

CODES: Mapping[int, frozenset[str]] = {
    403: frozenset({"invalid_api_key", "not_authorized"}),
    404: frozenset({"not_found"}),
    406: frozenset({"invalid_status", "invalid_field", "empty_field", "expired_quote"}),
    429: frozenset({"rate_limit_exceeded"}),
    500: frozenset({"internal_server_error"}),
}
"""Legacy interface, section 7; ``invalid_token`` (401) is never given."""

PASSED_ON = "read_recipient_logs activities[]."
"""An entry of a log passes as it is: the description names no more than may be changed in it."""


def list_shown_fields(operation: str, method: str, answer: Answer) -> Iterator[str]:
    """The fields of a good answer, each with the operation's name before it; and the method."""
    if operation and answer.is_success:
        yield f"{operation} by {method}"
        yield from (f"{operation} {field}" for field in _list_fields(json.loads(answer.body)))


def _list_fields(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            where = f"{place}.{name}" if place else name
            yield where
            yield from _list_fields(inner, where)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_fields(inner, f"{place}[]")


def compare_openapi(description: Description, shown: Iterable[str]) -> str:
    """What is described and not shown, shown and not described, or not as a document has it."""
    try:
        return next(_list_differences(description, shown), "")
    except (KeyError, TypeError, re.error) as error:
        return f"{type(error).__name__} {error}"


def _list_differences(description: Description, shown: Iterable[str]) -> Iterator[str]:
    operations = [one for path in description["paths"].values() for one in path.values()]
    told = {one["operationId"]: one for one in operations}
    described = {
        f"{one['operationId']} by {method.upper()}"
        for path in description["paths"].values()
        for method, one in path.items()
    } | {
        f"{name} {field}"
        for name, one in told.items()
        for field in _list_described_fields(_select_schema(one), description)
    }
    known = {_is_described_field(one, described) for one in shown}
    strange = (one for one in sorted(known - described) if not one.startswith(PASSED_ON))
    yield from (f"shown, and not described: {one}" for one in strange)
    yield from (f"described, and not shown: {one}" for one in sorted(described - known))
    for name, one in told.items():
        asked = [each["name"] for each in one.get("parameters", ()) if each["in"] == "query"]
        if asked != [*PARAMETERS.get(name, ())]:
            yield f"parameters of {name}: {', '.join(asked)}"
        if (one.get("security") == []) != (name == KEYLESS):
            yield f"key of {name}"
    yield from _list_wrong_failures(description)
    yield from _list_wrong_currencies(description)


def _select_schema(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = operation["responses"]["200"]["content"]["application/json"][
        "schema"
    ]
    return schema


def _list_described_fields(
    schema: Mapping[str, Any], description: Description, place: str = ""
) -> Iterator[str]:
    if reference := schema.get("$ref"):
        schema = description["components"]["schemas"][reference.rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from _list_described_fields(one, description, place)
    named = [*schema.get("properties", {}).items()]
    if isinstance(each := schema.get("additionalProperties"), dict):
        named.append(("*", each))
    for name, inner in named:
        where = f"{place}.{name}" if place else name
        yield where
        yield from _list_described_fields(inner, description, where)
    if "items" in schema:
        yield from _list_described_fields(schema["items"], description, f"{place}[]")


def _is_described_field(field: str, described: set[str]) -> str:
    """With ``*`` for a name that is a value, such as a currency's."""
    operation, _, path = field.partition(" ")
    known = f"{operation} "
    for part in re.split(r"(?=\.)", path):
        name = part.partition("[")[0]
        if known + part not in described and f"{known}.*" in described:
            part = part.replace(name, ".*", 1)  # noqa: PLW2901
        known += part
    return known


def _list_wrong_failures(description: Description) -> Iterator[str]:
    for status, codes in CODES.items():
        failure = description["components"]["responses"][f"Failure{status}"]
        schema = failure["content"]["application/json"]["schema"]
        told = schema["properties"]["errors"]["items"]["properties"]["code"]["enum"]
        if set(told) != codes:
            yield f"codes of {status}: {', '.join(told)}"


def _list_wrong_currencies(description: Description) -> Iterator[str]:
    """Section 2: three letters; by its own example."""
    for shape in ("BankBody", "PrimaryBody", "RecipientBody", "PaymentBody", "BatchBody"):
        for name, field in description["components"]["schemas"][shape]["properties"].items():
            if "currency" not in name.lower():
                continue
            pattern, examples = field.get("pattern", ""), field.get("examples", [])
            words = [word for word in ("USD", "usd", "DOLLAR") if re.search(pattern, word)]
            if words != ["USD"] or examples != ["USD"]:
                yield f"kind of {shape}.{name}"
