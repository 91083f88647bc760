"""Compares the OpenAPI document with the responses of the simulator's legacy interface.

Half of the shapes of `mappings/` have no effect on a response: they describe it. They are checked against the
responses of the legacy interface, which is independent of them, and against the lists of the legacy document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.compare.endpoints import Answer

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

OPTIONAL_FIELDS = frozenset({"list_batches batches[].dealId"})
"""Fields that an object may have (legacy interface, section 2), and the simulator's never have."""


def list_shown_fields(operation: str, method: str, answer: Answer) -> Iterator[str]:
    """The fields of a good answer, each with the operation's name before it; and the method."""
    if operation and answer.is_success:
        yield f"{operation} by {method}"
        yield from (f"{operation} {field}" for field in _list_fields(json.loads(answer.body)))


def _list_fields(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            field_path = f"{path}.{name}" if path else name
            yield field_path
            yield from _list_fields(inner, field_path)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_fields(inner, f"{path}[]")


def compare_openapi(description: Description, shown_fields: Iterable[str]) -> str:
    """What is described and not shown, shown and not described, or not as a document has it."""
    try:
        return next(_list_differences(description, shown_fields), "")
    except (KeyError, TypeError, re.error) as error:
        return f"{type(error).__name__} {error}"


def _list_differences(description: Description, shown_fields: Iterable[str]) -> Iterator[str]:
    operations = [
        operation for path in description["paths"].values() for operation in path.values()
    ]
    operations_by_id = {operation["operationId"]: operation for operation in operations}
    described = {
        f"{operation['operationId']} by {method.upper()}"
        for path in description["paths"].values()
        for method, operation in path.items()
    } | {
        f"{name} {field}"
        for name, operation in operations_by_id.items()
        for field in _list_described_fields(_select_schema(operation), description)
    }
    known_fields = {_is_described_field(operation, described) for operation in shown_fields}
    undescribed_fields = (
        operation
        for operation in sorted(known_fields - described)
        if not operation.startswith(PASSED_ON)
    )
    yield from (f"shown, and not described: {operation}" for operation in undescribed_fields)
    yield from (
        f"described, and not shown: {operation}"
        for operation in sorted(described - known_fields - OPTIONAL_FIELDS)
    )
    for name, operation in operations_by_id.items():
        query_names = [
            parameter["name"]
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        ]
        if query_names != [*PARAMETERS.get(name, ())]:
            yield f"parameters of {name}: {', '.join(query_names)}"
        if (operation.get("security") == []) != (name == KEYLESS):
            yield f"key of {name}"
    yield from _list_wrong_failures(description)
    yield from _list_wrong_currencies(description)


def _select_schema(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = operation["responses"]["200"]["content"]["application/json"][
        "schema"
    ]
    return schema


def _list_described_fields(
    schema: Mapping[str, Any], description: Description, path: str = ""
) -> Iterator[str]:
    if reference := schema.get("$ref"):
        schema = description["components"]["schemas"][reference.rpartition("/")[2]]
    for alternative in schema.get("anyOf", ()):
        yield from _list_described_fields(alternative, description, path)
    properties = [*schema.get("properties", {}).items()]
    if isinstance(additional := schema.get("additionalProperties"), dict):
        properties.append(("*", additional))
    for name, inner in properties:
        field_path = f"{path}.{name}" if path else name
        yield field_path
        yield from _list_described_fields(inner, description, field_path)
    if "items" in schema:
        yield from _list_described_fields(schema["items"], description, f"{path}[]")


def _is_described_field(field: str, described: set[str]) -> str:
    """With ``*`` for a name that is a value, such as a currency's."""
    operation, _, path = field.partition(" ")
    described_path = f"{operation} "
    for segment in re.split(r"(?=\.)", path):
        name = segment.partition("[")[0]
        if described_path + segment not in described and f"{described_path}.*" in described:
            segment = segment.replace(name, ".*", 1)  # noqa: PLW2901
        described_path += segment
    return described_path


def _list_wrong_failures(description: Description) -> Iterator[str]:
    for status, codes in CODES.items():
        failure = description["components"]["responses"][f"Failure{status}"]
        schema = failure["content"]["application/json"]["schema"]
        described_codes = schema["properties"]["errors"]["items"]["properties"]["code"]["enum"]
        if set(described_codes) != codes:
            yield f"codes of {status}: {', '.join(described_codes)}"


def _list_wrong_currencies(description: Description) -> Iterator[str]:
    """Section 2: three letters; by its own example."""
    for shape in ("BankBody", "PrimaryBody", "RecipientBody", "PaymentBody", "BatchBody"):
        for name, field in description["components"]["schemas"][shape]["properties"].items():
            if "currency" not in name.lower():
                continue
            pattern, examples = field.get("pattern", ""), field.get("examples", [])
            accepted_words = [word for word in ("USD", "usd", "DOLLAR") if re.search(pattern, word)]
            if accepted_words != ["USD"] or examples != ["USD"]:
                yield f"kind of {shape}.{name}"
