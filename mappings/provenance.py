"""Documentation of the translation, derived from flows and field tables.

For an operation it gives the calls, and the reason why a field is not sent.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import get_type_hints

from mappings.batch_views import BATCH
from mappings.effects import JSON, Operation
from mappings.objects import ADDRESS, BANK, COMPLIANCE, PAYMENT, PAYMENT_BATCH, RECIPIENT, WALLET

FACT_LABELS = {
    "phase": "state",
    "upstream": "id at the service",
    "abandoned": "superseded",
    "elsewhere": "created elsewhere",
    "is_new": "not read back yet",
    "adds": "payments that are being added",
    "still_there": "still at the service",
    "gone": "removed",
    "id": "first id",
}
"""Words for stored facts whose names are older than the terms of the documentation."""

BOOKKEEPING_FACTS = frozenset(
    ["version", "since", "changed_at", "removed_at", "has_memos", "together"]
)
"""Stored facts that only order concurrent changes or find rows."""

FIELD_TABLES = {
    "Recipient": RECIPIENT,
    "Address": ADDRESS,
    "Compliance": COMPLIANCE,
    "Bank account": BANK,
    "Wallet": WALLET,
    "Batch": BATCH,
    "Payment": PAYMENT,
    "Batch of a payment": PAYMENT_BATCH,
}
"""All field tables, by the names of their objects in the documentation."""

_UNSENT_REASONS = {
    "primary.method": "selects the primary account",
    "primary.currency": "the currency of the account if it has none of its own",
    "autoswitch": "stored by the gateway; the current interface has no counterpart",
    "holdup": "stored by the gateway; the current interface has no counterpart",
    "ids": "each is in the path of a call",
    "recipient.email": "looked up, because payments name recipients by id",
}

_NOTES_OF_INTERNAL_CALLS = (
    "for a draft",
    "of each batch that it supersedes",
    "if a later call is refused, to undo the create",
)

_CALL_LINE = re.compile(r"(?P<call>(?:GET|POST|PATCH|DELETE) +/\S*|No call)(?P<note>[ .].*)?")
_CONTINUATION_LINE = re.compile(r" {4,}(?P<note>\S.*)")


def list_documented_current_calls(operation: Operation) -> list[dict[str, str]]:
    """Lists the current calls of an operation, parsed from the docstring of its flow.

    Each call is a line with the method, the path and an optional note, below the title of the
    docstring.
    """
    _title, *lines = (inspect.getdoc(operation.flow) or "").splitlines()
    calls: list[dict[str, str]] = []
    for line in lines:
        if match := _CALL_LINE.fullmatch(line):
            note = (match["note"] or "").lstrip(". ")
            calls.append({"call": " ".join(match["call"].split()), "note": note})
        # Long notes continue on the next, indented line.
        elif calls and (continuation := _CONTINUATION_LINE.fullmatch(line)):
            calls[-1]["note"] += f" {continuation['note']}"
    return calls


def list_documented_calls_without_drafts(operation: Operation) -> list[dict[str, str]]:
    """Lists the calls that a client of the current interface makes itself: those not for drafts,
    and those that undo nothing.

    Drafts exist only in the gateway. A client that created the batch again before a quote or start,
    as the gateway does for a draft, would pay it twice.
    """
    return [
        call
        for call in list_documented_current_calls(operation)
        if not call["note"].startswith(_NOTES_OF_INTERNAL_CALLS)
    ]


def explain_unsent_fields(body: JSON, sent_fields: set[str | None]) -> Iterator[tuple[str, str]]:
    """Iterates over the fields of a body that no call contains, with the reason."""
    for name, _value in iterate_json_leaves(body):
        if not any(field and is_field_path_within(field, name) for field in sent_fields):
            yield name, _explain_unsent_field(name)


def is_field_path_within(field: str, outer: str) -> bool:
    """Whether a field path is equal to another, or inside it."""
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))


def _explain_unsent_field(name: str) -> str:
    path = re.sub(r"\[\d+\]", "", name).removeprefix("payout.")
    for name_pattern, reason in _UNSENT_REASONS.items():
        if is_field_path_within(path, name_pattern) or path.endswith(f".{name_pattern}"):
            return reason
    last = path.rpartition(".")[2]
    # Looked up by the last part of the path, because each table contains only its own fields.
    reasons = (
        row.reason
        for table in FIELD_TABLES.values()
        for row in table.rows
        if row.legacy_name == last and row.reason
    )
    return next(reasons, "unchanged, or not a field of this request")


def explain_unsent_params(
    operation: Operation, query: Mapping[str, str], sent_params: set[str | None]
) -> Iterator[tuple[str, str]]:
    """Iterates over the non-empty query parameters that no call contains, with the reason."""
    known_params = get_type_hints(operation.query_shape) if operation.query_shape else {}
    for name, value in query.items():
        if value and name not in sent_params:
            reason = "applied by the gateway, over all rows of the service"
            yield name, reason if name in known_params else "not a parameter of this request"


def iterate_json_leaves(value: JSON, path: str = "") -> Iterator[tuple[str, JSON]]:
    """Iterates over the values that contain no others, with their paths (``payments[0].memo``)."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from iterate_json_leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from iterate_json_leaves(inner, f"{path}[{number}]")
    elif path:
        yield path, value
