"""Documentation of the translation, derived from flows and field tables.

For an operation it gives the calls, the reason why a field is not sent, and the source of each
field of an answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import get_type_hints

from mappings.batch_views import BATCH
from mappings.effects import JSON, Operation
from mappings.fields import FieldTable
from mappings.objects import ADDRESS, BANK, PAYMENT, PAYMENT_BATCH, RECIPIENT, WALLET

_TABLES = (BANK, WALLET, RECIPIENT, ADDRESS, PAYMENT, BATCH)
_UNSENT_REASONS = {
    "primary.method": "selects the primary account",
    "primary.currency": "the currency of the account if it has none of its own",
    "autoswitch": "stored by the gateway; the current interface has no counterpart",
    "holdup": "stored by the gateway; the current interface has no counterpart",
    "ids": "each is in the path of a call",
    "recipient.email": "looked up, because payments name recipients by id",
}

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
    """Lists the calls that a client of the current interface makes itself: those not for drafts.

    Drafts exist only in the gateway. A client that created the batch again before a quote or start,
    as the gateway does for a draft, would pay it twice.
    """
    return [
        call
        for call in list_documented_current_calls(operation)
        if not call["note"].startswith("for a draft")
    ]


def explain_unsent_fields(body: JSON, sent_fields: set[str | None]) -> Iterator[tuple[str, str]]:
    """Iterates over the fields of a body that no call contains, with the reason."""
    for name in _iterate_field_paths(body):
        if not any(field and is_field_path_within(field, name) for field in sent_fields):
            yield name, _explain_unsent_field(name)


def is_field_path_within(field: str, outer: str) -> bool:
    """Whether a field path is equal to another, or inside it."""
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))


def _explain_unsent_field(name: str) -> str:
    path = re.sub(r"\[\d+\]", "", name).removeprefix("payout.")
    for name_pattern, reason in _UNSENT_REASONS.items():
        if (
            path == name_pattern
            or path.startswith(f"{name_pattern}.")
            or path.endswith(f".{name_pattern}")
        ):
            return reason
    last = path.rpartition(".")[2]
    # Looked up by the last part of the path, because each table contains only its own fields.
    reasons = (
        row.reason
        for table in _TABLES
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


_TABLE_BY_NAME: Mapping[str, FieldTable] = {
    "recipient": RECIPIENT,
    "recipients": RECIPIENT,
    "address": ADDRESS,
    "bank": BANK,
    "wallet": WALLET,
    "batch": BATCH,
    "batches": BATCH,
    "payment": PAYMENT,
    "payments": PAYMENT,
}
"""Field name of an object in answers to its table."""


_FROM_SERVICE_OR_COUNTED = "as the service returns it, or computed from the payments"

_SUMMARY_RULES: Mapping[str, tuple[str, str]] = {
    "processed_by": ("processed_by", "as the service returns it, else API"),
    "errors": ("errors", "as the service returns it, else empty"),
    "serverTime": ("serverTime", "as the service returns it, else the gateway's clock"),
    **{
        name: (name, _FROM_SERVICE_OR_COUNTED)
        for name in ("methods", "ServiceTotal", "GatewayTotal", "total")
    },
    "merchantBalances": ("amount", "from GET /balance, in the currency of the batch"),
    "enoughFunds": ("amount", "as the service returns it, or computed with GET /balance"),
}
"""Source and rule of the fields of a batch summary that ``summaries`` computes."""

_BALANCE_RULES: Mapping[str, tuple[str, str]] = {
    "primary": ("primary", "as the service returns it, else the first one"),
    "type": ("type", "service, except for the wallet account"),
}
"""Source and rule of the fields of a balance that ``balances`` computes."""


def _trace_fields_with_rules(
    fields: Iterable[str], rules: Mapping[str, tuple[str, str]], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for name in fields:
        yield f"{prefix}.{name}", *rules.get(name, (name, "same"))


def trace_answer_fields(
    answer: Mapping[str, JSON], table: FieldTable | None = None, prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Iterates over the fields of an answer that have a rule: legacy path, current field, rule."""
    rows = {row.legacy_name: row for row in table.rows} if table else {}
    for name, value in answer.items():
        path = f"{prefix}.{name}" if prefix else name
        if row := rows.get(name):
            current = row.answer_name or row.current_name or "-"
            yield path, current, row.reason or ("same" if current == name else "renamed")
        if name == "batchSummary" and isinstance(value, Mapping):
            yield from _trace_fields_with_rules(value, _SUMMARY_RULES, path)
            continue
        if name == "balances" and isinstance(value, Mapping):
            yield from _trace_fields_with_rules(
                next(iter(value.values()), ()), _BALANCE_RULES, f"{path}{{}}"
            )
            continue
        inner = PAYMENT_BATCH if table is PAYMENT and name == "batch" else _TABLE_BY_NAME.get(name)
        if isinstance(value, Mapping):
            yield from trace_answer_fields(value, inner, path)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            # All items have the same fields, so the first one represents them.
            yield from trace_answer_fields(value[0], inner, f"{path}[]")


def _iterate_field_paths(value: JSON, prefix: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _iterate_field_paths(inner, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, inner in enumerate(value):
            yield from _iterate_field_paths(inner, f"{prefix}[{number}]")
    elif prefix:
        yield prefix
