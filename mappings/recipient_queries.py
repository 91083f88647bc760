"""Translates the query of the recipient list; its parameters differ in meaning on the two sides.

If the service can answer the query, one call suffices. Otherwise the gateway reads the whole list
and applies the filters and the order of the legacy list (legacy interface, section 4.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mappings import current
from mappings.dates import parse_date_span, parse_instant_or_earliest
from mappings.effects import JSON, ListQuery
from mappings.field_types import find_country_alpha_2_code
from mappings.objects import (
    UPSTREAM_STATUS,
    Facts,
    choose_legacy_recipient_status,
    derive_legacy_compliance_status,
    determine_account_type,
    find_primary_account,
    is_deleted_for_clients,
)
from mappings.paging import parse_page_params

Row = Mapping[str, JSON]
FactsById = Mapping[str, Facts]

NATIVE_SORT_FIELDS = frozenset(
    {"name", "email", "referenceId", "payoutMethod", "createdAt", "updatedAt"}
)
"""Values of ``orderBy`` that the service accepts (current interface, section 4.1)."""

NATIVE_STATUSES = frozenset({"active", "incomplete", "suspended"})
NATIVE_COMPLIANCE_STATUSES = frozenset({"verified", "blocked"})
"""Without ``pending``: for legacy clients it includes ``review``, for which there is no filter."""


@dataclass(slots=True)
class _QueryFilters:
    """The filters of a list query: those that the service applies, and those of the gateway."""

    prefilter: dict[str, str] = field(default_factory=dict)
    tests: list[Callable[[Row], bool]] = field(default_factory=list)
    is_exact: bool = True
    """Whether the service's filters alone give exactly the rows that the client asked for."""

    def add_native_filter(self, test: Callable[[Row], bool], **prefilter: str) -> None:
        """Adds a filter of the service; ``test`` is used if the gateway reads all rows."""
        self.prefilter |= prefilter
        self.tests.append(test)

    def add_gateway_filter(self, test: Callable[[Row], bool]) -> None:
        """Adds a filter that only the gateway can apply."""
        self.tests.append(test)
        self.is_exact = False


def build_list_query(query: Mapping[str, str], facts_by_id: FactsById) -> ListQuery:
    """Builds the step for a list query; unknown parameters are ignored."""
    filters = _QueryFilters()
    # The order is fixed, so that equal queries make equal calls.
    for name, add_filter in _FILTERS.items():
        if value := query.get(name):
            add_filter(filters, value, query, facts_by_id)
    order = query["orderBy"] if query.get("orderBy") in SORT_KEYS else "createdAt"
    is_descending = query.get("sortBy", "").lower() != "asc"
    page = parse_page_params(query)
    native_sort = {"orderBy": order, "sortBy": "desc" if is_descending else "asc"}
    # The service still lists recipients whose deletion failed, so its own paging would be wrong.
    has_undeleted = any(facts.get("still_there") for facts in facts_by_id.values())
    deleted_ids = frozenset(id_ for id_, facts in facts_by_id.items() if facts.get("deleted"))
    is_native = filters.is_exact and order in NATIVE_SORT_FIELDS and not has_undeleted
    return ListQuery(
        "/recipients",
        "recipients",
        page.number,
        page.size,
        is_hidden=lambda row: is_deleted_for_clients(row, facts_by_id.get(row["id"], {})),
        is_match=lambda row: all(test(row) for test in filters.tests),
        sort_key=lambda row: SORT_KEYS[order](row, facts_by_id.get(row["id"], {})),
        is_descending=is_descending,
        native_query={**page.build_query(), **filters.prefilter, **native_sort}
        if is_native
        else None,
        prefilter=filters.prefilter,
        excluded_ids=deleted_ids,
        is_indexed=True,
        is_sorted_by_id=order == "id",
    )


# Parameters: each is a filter of the service, of the gateway, or both


def _add_search_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    search_text = value.casefold()

    def has_text(row: Row) -> bool:
        return any(
            search_text in _replace_non_text_with_empty(row.get(name)).casefold()
            for name in ("name", "email", "referenceId")
        )

    filters.add_gateway_filter(has_text)


def _add_status_filter(filters: _QueryFilters, value: str, _: Any, facts_by_id: FactsById) -> None:
    def has_status(row: Row) -> bool:
        return bool(choose_legacy_recipient_status(row, facts_by_id.get(row["id"], {})) == value)

    # A stored status replaces the service's in answers, so the service's filter alone is wrong.
    has_stored_status = any(
        UPSTREAM_STATUS.get(facts.get("status", "")) == value for facts in facts_by_id.values()
    )
    if value in NATIVE_STATUSES:
        filters.add_native_filter(has_status, status=value)
    if value not in NATIVE_STATUSES or has_stored_status:
        filters.add_gateway_filter(has_status)


def _add_compliance_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    def has_status(row: Row) -> bool:
        return bool(derive_legacy_compliance_status(row.get("complianceStatus")) == value)

    if value in NATIVE_COMPLIANCE_STATUSES:
        filters.add_native_filter(has_status, complianceStatus=value)
    else:
        filters.add_gateway_filter(has_status)


def _add_country_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    if code := find_country_alpha_2_code(value):
        filters.add_native_filter(
            lambda row: bool(_extract_address(row).get("country") == code), country=code
        )
    else:
        # A value that no recipient can have: the list is empty, not an error (contract, section 3).
        filters.add_gateway_filter(lambda _row: False)


def _add_city_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    filters.add_gateway_filter(
        lambda row: (
            _replace_non_text_with_empty(_extract_address(row).get("city")).casefold()
            == value.casefold()
        )
    )


def _add_payout_method_filter(
    filters: _QueryFilters, value: str, query: Mapping[str, str], _: Any
) -> None:
    def has_method(row: Row) -> bool:
        return bool(determine_payout_method(row) == value)

    # The service filters bank accounts by method only together with a currency.
    has_currency_filter = bool(query.get("payoutCurrency"))
    if value == current.WALLET or (value == current.BANK_TRANSFER and has_currency_filter):
        filters.add_native_filter(has_method, payoutMethod=value)
    else:
        filters.add_gateway_filter(has_method)


def _add_payout_currency_filter(
    filters: _QueryFilters, value: str, query: Mapping[str, str], _: Any
) -> None:
    code = value.upper()

    def has_currency(row: Row) -> bool:
        return bool(determine_payout_currency(row) == code)

    if not re.fullmatch("[A-Z]{3}", code):
        filters.add_gateway_filter(lambda _row: False)
    elif query.get("payoutMethod") == current.BANK_TRANSFER:
        filters.add_native_filter(has_currency, currency=code)
    else:
        filters.add_gateway_filter(has_currency)


def _add_start_date_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    if span := parse_date_span(value):
        start, _end = span
        # The service filters by update time. That is safe: a row created since then was also
        # updated since then. The gateway filters the rest by creation time.
        text = start.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        filters.add_native_filter(lambda row: parse_created_at(row) >= start, startDate=text)
        filters.add_gateway_filter(lambda row: parse_created_at(row) >= start)


def _add_end_date_filter(filters: _QueryFilters, value: str, *_: Any) -> None:
    if span := parse_date_span(value):
        _start, end = span
        filters.add_gateway_filter(lambda row: parse_created_at(row) <= end)


_FILTERS: dict[str, Callable[[_QueryFilters, str, Mapping[str, str], FactsById], None]] = {
    "search": _add_search_filter,
    "status": _add_status_filter,
    "complianceStatus": _add_compliance_filter,
    "country": _add_country_filter,
    "city": _add_city_filter,
    "payoutMethod": _add_payout_method_filter,
    "payoutCurrency": _add_payout_currency_filter,
    "startDate": _add_start_date_filter,
    "endDate": _add_end_date_filter,
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
    return parse_instant_or_earliest(row.get("createdAt"))


def _extract_address(row: Row) -> Mapping[str, JSON]:
    return row.get("address") or {}


def _replace_non_text_with_empty(value: JSON) -> str:
    return value if isinstance(value, str) else ""


# Sort keys


def _build_field_sort_key(name: str) -> Callable[[Row, Facts], Any]:
    return lambda row, _facts: _replace_non_text_with_empty(row.get(name))


def _build_address_sort_key(name: str) -> Callable[[Row, Facts], Any]:
    return lambda row, _facts: _replace_non_text_with_empty(_extract_address(row).get(name))


_SORTED_TEXT_FIELDS = (
    "id", "name", "email", "referenceId", "firstName", "lastName", "type", "language", "dob",
    "primaryCurrency",
)  # fmt: skip
SORT_KEYS: Mapping[str, Callable[[Row, Facts], Any]] = {
    **{name: _build_field_sort_key(name) for name in _SORTED_TEXT_FIELDS},
    **{name: _build_address_sort_key(name) for name in ("country", "city", "region", "postalCode")},
    "status": lambda row, facts: _replace_non_text_with_empty(
        choose_legacy_recipient_status(row, facts)
    ),
    "complianceStatus": lambda row, _facts: _replace_non_text_with_empty(
        derive_legacy_compliance_status(row.get("complianceStatus"))
    ),
    "payoutMethod": lambda row, _facts: _replace_non_text_with_empty(determine_payout_method(row)),
    "payoutCurrency": lambda row, _facts: _replace_non_text_with_empty(
        determine_payout_currency(row)
    ),
    "createdAt": lambda row, _facts: parse_created_at(row),
    "updatedAt": lambda row, _facts: parse_instant_or_earliest(row.get("updatedAt")),
}
"""Legacy interface, section 4.1, orderBy: "status, country, city, name, email, id,
complianceStatus and others"."""
