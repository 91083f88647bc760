"""Documentation of the translation, derived from flows and field tables.

Lists the calls of an operation, the reason why a field is not sent, and the source of each field of
an answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import get_type_hints

from mappings.batch_views import BATCH
from mappings.fields import Fields
from mappings.grammar import JSON, Operation
from mappings.objects import ADDRESS, BANK, PAYMENT, PAYMENT_BATCH, RECIPIENT, WALLET

_TABLES = (BANK, WALLET, RECIPIENT, ADDRESS, PAYMENT, BATCH)
_BY_HAND = {
    "primary.method": "selects the primary account",
    "primary.currency": "the currency of the account if it has none of its own",
    "autoswitch": "stored by the gateway; the current interface has no counterpart",
    "holdup": "stored by the gateway; the current interface has no counterpart",
    "ids": "each is in the path of a call",
    "recipient.email": "looked up, because payments name recipients by id",
}

_CALL = re.compile(r"(?P<call>(?:GET|POST|PATCH|DELETE) +/\S*|No call)(?P<note>[ .].*)?")
_MORE = re.compile(r" {4,}(?P<note>\S.*)")


def list_current_calls(operation: Operation) -> list[dict[str, str]]:
    """Lists the current calls of an operation, parsed from the docstring of its flow.

    Each call is a line with the method, the path and an optional note, below the title of the
    docstring.
    """
    _title, *lines = (inspect.getdoc(operation.flow) or "").splitlines()
    found: list[dict[str, str]] = []
    for line in lines:
        if one := _CALL.fullmatch(line):
            note = (one["note"] or "").lstrip(". ")
            found.append({"call": " ".join(one["call"].split()), "note": note})
        # Long notes continue on the next, indented line.
        elif found and (more := _MORE.fullmatch(line)):
            found[-1]["note"] += f" {more['note']}"
    return found


def list_client_calls(operation: Operation) -> list[dict[str, str]]:
    """Lists the calls that a client of the current interface makes itself: those not for drafts.

    Drafts exist only in the gateway. A client that created the batch again before a quote or start,
    as the gateway does for a draft, would pay it twice.
    """
    return [
        one for one in list_current_calls(operation) if not one["note"].startswith("for a draft")
    ]


def explain_unsent_fields(body: JSON, sent: set[str | None]) -> Iterator[tuple[str, str]]:
    """Iterates over the fields of a body that no call contains, with the reason."""
    for name in _fields(body):
        if not any(one and is_within(one, name) for one in sent):
            yield name, _why(name)


def is_within(field: str, outer: str) -> bool:
    """Tells if a field path is equal to another, or inside it."""
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))


def _why(name: str) -> str:
    plain = re.sub(r"\[\d+\]", "", name).removeprefix("payout.")
    for known, why in _BY_HAND.items():
        if plain == known or plain.startswith(f"{known}.") or plain.endswith(f".{known}"):
            return why
    last = plain.rpartition(".")[2]
    found = (row.why for table in _TABLES for row in table.rows if row.legacy == last and row.why)
    return next(found, "unchanged, or not a field of this request")


def explain_unsent_params(
    operation: Operation, query: Mapping[str, str], sent: set[str | None]
) -> Iterator[tuple[str, str]]:
    """Iterates over the non-empty query parameters that no call contains, with the reason."""
    known = get_type_hints(operation.query) if operation.query else {}
    for name, value in query.items():
        if value and name not in sent:
            listed = "applied by the gateway, over all rows of the service"
            yield name, listed if name in known else "not a parameter of this request"


TABLES_OF: Mapping[str, tuple[Fields, ...]] = {
    "recipients": (RECIPIENT, ADDRESS),
    "payout_methods": (BANK, WALLET),
    "batches": (BATCH,),
    "payments": (PAYMENT,),
}
"""Module of an operation to the tables of its answers."""

_TABLE_OF: Mapping[str, Fields] = {
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


_GIVEN_OR_COUNTED = "as the service returns it, or computed from the payments"

_SUMMARY: Mapping[str, tuple[str, str]] = {
    "processed_by": ("processed_by", "as the service returns it, else API"),
    "errors": ("errors", "as the service returns it, else empty"),
    "serverTime": ("serverTime", "as the service returns it, else the gateway's clock"),
    **{
        name: (name, _GIVEN_OR_COUNTED)
        for name in ("methods", "ServiceTotal", "GatewayTotal", "total")
    },
    "merchantBalances": ("amount", "from GET /balance, in the currency of the batch"),
    "enoughFunds": ("amount", "as the service returns it, or computed with GET /balance"),
}
"""Source and rule of the fields of a batch summary that ``summaries`` computes."""

_BALANCE: Mapping[str, tuple[str, str]] = {
    "primary": ("primary", "as the service returns it, else the first one"),
    "type": ("type", "service, except for the wallet account"),
}
"""Source and rule of the fields of a balance that ``balances`` computes."""


def _by_hand(
    fields: Iterable[str], known: Mapping[str, tuple[str, str]], place: str
) -> Iterator[tuple[str, str, str]]:
    for name in fields:
        yield f"{place}.{name}", *known.get(name, (name, "same"))


def trace_answer_fields(
    answer: Mapping[str, JSON], table: Fields | None = None, place: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Iterates over the fields of an answer that have a rule: legacy path, current field, rule."""
    rows = {row.legacy: row for row in table.rows} if table else {}
    for name, value in answer.items():
        where = f"{place}.{name}" if place else name
        if row := rows.get(name):
            current = row.shown or row.current or "-"
            yield where, current, row.why or ("same" if current == name else "renamed")
        if name == "batchSummary" and isinstance(value, Mapping):
            yield from _by_hand(value, _SUMMARY, where)
            continue
        if name == "balances" and isinstance(value, Mapping):
            yield from _by_hand(next(iter(value.values()), ()), _BALANCE, f"{where}{{}}")
            continue
        inner = PAYMENT_BATCH if table is PAYMENT and name == "batch" else _TABLE_OF.get(name)
        if isinstance(value, Mapping):
            yield from trace_answer_fields(value, inner, where)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            # All items have the same fields, so the first one represents them.
            yield from trace_answer_fields(value[0], inner, f"{where}[]")


def _fields(value: JSON, place: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _fields(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{place}[{number}]")
    elif place:
        yield place
