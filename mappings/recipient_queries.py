"""Translation of the recipient list's query, whose parameters have other meanings on each side.

If the service can answer the query, it takes one call. Otherwise the gateway reads the whole list
and applies the filters and the order of the legacy document (legacy interface, section 4.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mappings import current
from mappings.dates import parse_instant, parse_span
from mappings.grammar import JSON, Find
from mappings.kinds import to_alpha_2
from mappings.objects import (
    UPSTREAM_STATUS,
    Facts,
    derive_legacy_compliance,
    derive_legacy_status,
    determine_account_type,
    find_primary_account,
    is_gone,
)
from mappings.paging import parse_page_params

Row = Mapping[str, JSON]
Remembered = Mapping[str, Facts]

SERVICE_ORDERS = frozenset(
    {"name", "email", "referenceId", "payoutMethod", "createdAt", "updatedAt"}
)
"""Values of ``orderBy`` in the current interface (section 4.1)."""

SERVICE_STATUSES = frozenset({"active", "incomplete", "suspended"})
SERVICE_COMPLIANCE = frozenset({"verified", "blocked"})
"""Without ``pending``: for legacy clients it includes ``review``, for which there is no filter."""


@dataclass(slots=True)
class _Question:
    """The filters of a list query: those that the service applies, and those of the gateway."""

    narrow: dict[str, str] = field(default_factory=dict)
    tests: list[Callable[[Row], bool]] = field(default_factory=list)
    exact: bool = True
    """Whether the service's filters alone give exactly the rows that the client asked for."""

    def ask(self, test: Callable[[Row], bool], **narrow: str) -> None:
        """Adds a filter of the service; ``test`` is used if the gateway reads all rows."""
        self.narrow |= narrow
        self.tests.append(test)

    def decide(self, test: Callable[[Row], bool]) -> None:
        """Adds a filter that only the gateway can apply."""
        self.tests.append(test)
        self.exact = False


def build_find(query: Mapping[str, str], remembered: Remembered) -> Find:
    """Builds the step for a list query; unknown parameters are ignored."""
    question = _Question()
    for name, read in _PARAMETERS.items():
        if value := query.get(name):
            read(question, value, query, remembered)
    order = query["orderBy"] if query.get("orderBy") in ORDERS else "createdAt"
    descending = query.get("sortBy", "").lower() != "asc"
    page = parse_page_params(query)
    sorting = {"orderBy": order, "sortBy": "desc" if descending else "asc"}
    # The service still lists recipients whose deletion failed, so its own paging would be wrong.
    still_there = any(facts.get("still_there") for facts in remembered.values())
    gone = frozenset(id_ for id_, facts in remembered.items() if facts.get("deleted"))
    askable = question.exact and order in SERVICE_ORDERS and not still_there
    return Find(
        "/recipients",
        "recipients",
        page.number,
        page.size,
        hidden=lambda row: is_gone(row, remembered.get(row["id"], {})),
        where=lambda row: all(test(row) for test in question.tests),
        order=lambda row: ORDERS[order](row, remembered.get(row["id"], {})),
        descending=descending,
        ask={**page.query(), **question.narrow, **sorting} if askable else None,
        narrow=question.narrow,
        gone=gone,
        indexed=True,
        by_id=order == "id",
    )


# Parameters: each is a filter of the service, of the gateway, or both


def _search(question: _Question, value: str, *_: Any) -> None:
    wanted = value.casefold()

    def anywhere(row: Row) -> bool:
        return any(
            wanted in _text(row.get(name)).casefold() for name in ("name", "email", "referenceId")
        )

    question.decide(anywhere)


def _status(question: _Question, value: str, _: Any, remembered: Remembered) -> None:
    def is_shown(row: Row) -> bool:
        return bool(derive_legacy_status(row, remembered.get(row["id"], {})) == value)

    # A stored status replaces the service's in answers, so the service's filter alone is wrong.
    worded = any(
        UPSTREAM_STATUS.get(facts.get("status", "")) == value for facts in remembered.values()
    )
    if value in SERVICE_STATUSES:
        question.ask(is_shown, status=value)
    if value not in SERVICE_STATUSES or worded:
        question.decide(is_shown)


def _compliance(question: _Question, value: str, *_: Any) -> None:
    def is_shown(row: Row) -> bool:
        return bool(derive_legacy_compliance(row.get("complianceStatus")) == value)

    if value in SERVICE_COMPLIANCE:
        question.ask(is_shown, complianceStatus=value)
    else:
        question.decide(is_shown)


def _country(question: _Question, value: str, *_: Any) -> None:
    if code := to_alpha_2(value):
        question.ask(lambda row: bool(_address(row).get("country") == code), country=code)
    else:
        question.decide(lambda _row: False)


def _city(question: _Question, value: str, *_: Any) -> None:
    question.decide(lambda row: _text(_address(row).get("city")).casefold() == value.casefold())


def _payout_method(question: _Question, value: str, query: Mapping[str, str], _: Any) -> None:
    def is_primary(row: Row) -> bool:
        return bool(determine_payout_method(row) == value)

    # The service filters bank accounts by method only together with a currency.
    with_currency = bool(query.get("payoutCurrency"))
    if value == current.WALLET or (value == current.BANK_TRANSFER and with_currency):
        question.ask(is_primary, payoutMethod=value)
    else:
        question.decide(is_primary)


def _payout_currency(question: _Question, value: str, query: Mapping[str, str], _: Any) -> None:
    code = value.upper()

    def is_its(row: Row) -> bool:
        return bool(determine_payout_currency(row) == code)

    if not re.fullmatch("[A-Z]{3}", code):
        question.decide(lambda _row: False)
    elif query.get("payoutMethod") == current.BANK_TRANSFER:
        question.ask(is_its, currency=code)
    else:
        question.decide(is_its)


def _start_date(question: _Question, value: str, *_: Any) -> None:
    if found := parse_span(value):
        start, _end = found
        # The service filters by update time. That is safe: a row created since then was also
        # updated since then. The gateway filters the rest by creation time.
        text = start.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        question.ask(lambda row: parse_created_at(row) >= start, startDate=text)
        question.decide(lambda row: parse_created_at(row) >= start)


def _end_date(question: _Question, value: str, *_: Any) -> None:
    if found := parse_span(value):
        _start, end = found
        question.decide(lambda row: parse_created_at(row) <= end)


_PARAMETERS: dict[str, Callable[[_Question, str, Mapping[str, str], Remembered], None]] = {
    "search": _search,
    "status": _status,
    "complianceStatus": _compliance,
    "country": _country,
    "city": _city,
    "payoutMethod": _payout_method,
    "payoutCurrency": _payout_currency,
    "startDate": _start_date,
    "endDate": _end_date,
}


# Values of a row


def determine_payout_method(row: Row) -> JSON:
    primary = find_primary_account(row)
    return determine_account_type(primary) if primary else row.get("payoutMethod")


def determine_payout_currency(row: Row) -> JSON:
    """Returns the currency of payouts; None if it is known that the recipient has no account."""
    primary = find_primary_account(row)
    if primary is None and row.get("accounts") is not None:
        return None
    return (primary or {}).get("currency") or row.get("primaryCurrency")


def parse_created_at(row: Row) -> datetime:
    return parse_instant(row.get("createdAt"))


def _address(row: Row) -> Mapping[str, JSON]:
    return row.get("address") or {}


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


# Sort keys


def _plain(name: str) -> Callable[[Row, Facts], Any]:
    return lambda row, _facts: _text(row.get(name))


def _in_address(name: str) -> Callable[[Row, Facts], Any]:
    return lambda row, _facts: _text(_address(row).get(name))


ORDERS: Mapping[str, Callable[[Row, Facts], Any]] = {
    **{
        name: _plain(name)
        for name in (
            [
                "id",
                "name",
                "email",
                "referenceId",
                "firstName",
                "lastName",
                "type",
                "language",
                "dob",
                "primaryCurrency",
            ]
        )
    },
    **{name: _in_address(name) for name in ("country", "city", "region", "postalCode")},
    "status": lambda row, facts: _text(derive_legacy_status(row, facts)),
    "complianceStatus": lambda row, _facts: _text(
        derive_legacy_compliance(row.get("complianceStatus"))
    ),
    "payoutMethod": lambda row, _facts: _text(determine_payout_method(row)),
    "payoutCurrency": lambda row, _facts: _text(determine_payout_currency(row)),
    "createdAt": lambda row, _facts: parse_created_at(row),
    "updatedAt": lambda row, _facts: parse_instant(row.get("updatedAt")),
}
"""Legacy interface, section 4.1, orderBy: "status, country, city, name, email, id,
complianceStatus and others"."""
