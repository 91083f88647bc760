"""What an operation becomes, why a field is in no call, and where those of an answer come from."""

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
    "primary.method": "says which account is the primary one",
    "primary.currency": "the currency of the account, where that has none of its own",
    "autoswitch": "remembered here; the current interface has nothing like it",
    "holdup": "remembered here; the current interface has nothing like it",
    "ids": "each named in the path of a call",
    "recipient.email": "looked up: payments name recipients by their id",
}

_CALL = re.compile(r"(?P<call>(?:GET|POST|PATCH|DELETE) +/\S*|No call)(?P<note>[ .].*)?")
_MORE = re.compile(r" {4,}(?P<note>\S.*)")


def list_current_calls(operation: Operation) -> list[dict[str, str]]:
    """The calls of the current interface, as the flow's docstring lists them below its title."""
    _title, *lines = (inspect.getdoc(operation.flow) or "").splitlines()
    found: list[dict[str, str]] = []
    for line in lines:
        if one := _CALL.fullmatch(line):
            note = (one["note"] or "").lstrip(". ")
            found.append({"call": " ".join(one["call"].split()), "note": note})
        elif found and (more := _MORE.fullmatch(line)):
            found[-1]["note"] += f" {more['note']}"
    return found


def list_client_calls(operation: Operation) -> list[dict[str, str]]:
    """Those of them that a client makes which has moved: drafts are the gateway's own affair.

    One that made a batch anew for its quote or start, as the gateway does for a draft, would pay it
    twice.
    """
    return [
        one for one in list_current_calls(operation) if not one["note"].startswith("for a draft")
    ]


def explain_unsent_fields(body: JSON, sent: set[str | None]) -> Iterator[tuple[str, str]]:
    """The fields of a body that are in no call, and why."""
    for name in _fields(body):
        if not any(one and is_within(one, name) for one in sent):
            yield name, _why(name)


def is_within(field: str, outer: str) -> bool:
    """Whether a field is another one, or stands inside of it."""
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
    """The parameters of a query that are in no call, and why; an empty one is as good as none."""
    known = get_type_hints(operation.query) if operation.query else {}
    for name, value in query.items():
        if value and name not in sent:
            listed = "decided here, over all that the service lists"
            yield name, listed if name in known else "not a parameter of this request"


TABLES_OF: Mapping[str, tuple[Fields, ...]] = {
    "recipients": (RECIPIENT, ADDRESS),
    "payout_methods": (BANK, WALLET),
    "batches": (BATCH,),
    "payments": (PAYMENT,),
}
"""By room."""

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
"""By what an object is called in answers."""


_GIVEN_OR_COUNTED = "as the service gives it, or counted from the payments"

_SUMMARY: Mapping[str, tuple[str, str]] = {
    "processed_by": ("processed_by", "as the service gives it, or API"),
    "errors": ("errors", "as the service gives it, or none"),
    "serverTime": ("serverTime", "as the service gives it, or this machine's clock"),
    **{
        name: (name, _GIVEN_OR_COUNTED)
        for name in ("methods", "ServiceTotal", "GatewayTotal", "total")
    },
    "merchantBalances": ("amount", "of GET /balance, in the batch's currency"),
    "enoughFunds": ("amount", "as the service gives it, or reckoned with GET /balance"),
}
"""Of a batch summary, where more than its name is said of a field (``summaries``)."""

_BALANCE: Mapping[str, tuple[str, str]] = {
    "primary": ("primary", "as the service gives it, or the first one"),
    "type": ("type", "service for all but the wallet account"),
}
"""Of a balance (``balances``)."""


def _by_hand(
    fields: Iterable[str], known: Mapping[str, tuple[str, str]], place: str
) -> Iterator[tuple[str, str, str]]:
    for name in fields:
        yield f"{place}.{name}", *known.get(name, (name, "same"))


def trace_answer_fields(
    answer: Mapping[str, JSON], table: Fields | None = None, place: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Each field of an answer that is somebody's: the legacy one, the current one, and the rule."""
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
