"""Translates the query of the recipient list; its parameters differ in meaning on the two sides.

If the service can answer the query, one call suffices. Otherwise the gateway reads the whole list
and applies the filters and the order of the legacy list (legacy interface, section 4.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from mappings import current
from mappings.dates import format_timestamp, parse_date_span, parse_instant_or_earliest
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


class _Filter(NamedTuple):
    """The test of a row, and the filter of the service that every row passes which passes it."""

    test: Callable[[Row], bool]
    prefilter: Mapping[str, str] = {}
    is_exact: bool = False
    """Whether the service's filter gives exactly the rows that pass the test."""


def build_list_query(query: Mapping[str, str], facts_by_id: FactsById) -> ListQuery:
    """Builds the step for a list query; unknown parameters are ignored."""
    prefilter: dict[str, str] = {}
    filters: list[_Filter] = []
    # The order is fixed, so that equal queries make equal calls.
    for name, build_filter in _FILTERS.items():
        if (value := query.get(name)) and (built := build_filter(value, query, facts_by_id)):
            filters.append(built)
            prefilter |= built.prefilter
    order = query["orderBy"] if query.get("orderBy") in SORT_KEYS else "createdAt"
    is_descending = query.get("sortBy", "").lower() != "asc"
    page = parse_page_params(query)
    native_sort = {"orderBy": order, "sortBy": "desc" if is_descending else "asc"}
    # The service still lists recipients whose deletion failed, so its own paging would be wrong.
    has_undeleted = any(facts.get("still_there") for facts in facts_by_id.values())
    deleted_ids = frozenset(id_ for id_, facts in facts_by_id.items() if facts.get("deleted"))
    is_exact = all(each.is_exact for each in filters)
    is_native = is_exact and order in NATIVE_SORT_FIELDS and not has_undeleted
    return ListQuery(
        "/recipients",
        page.number,
        page.size,
        is_hidden=lambda row: is_deleted_for_clients(row, facts_by_id.get(row["id"], {})),
        is_match=lambda row: all(each.test(row) for each in filters),
        sort_key=lambda row: SORT_KEYS[order](row, facts_by_id.get(row["id"], {})),
        is_descending=is_descending,
        native_query={**page.build_query(), **prefilter, **native_sort} if is_native else None,
        prefilter=prefilter,
        excluded_ids=deleted_ids,
        is_indexed=True,
        is_sorted_by_id=order == "id",
    )


# Parameters: each is a filter of the service, of the gateway, or both


def _build_search_filter(value: str, *_: Any) -> _Filter:
    search_text = value.casefold()
    return _Filter(
        lambda row: any(
            search_text in _replace_non_text_with_empty(row.get(name)).casefold()
            for name in ("name", "email", "referenceId")
        )
    )


def _build_status_filter(value: str, _: Any, facts_by_id: FactsById) -> _Filter:
    def has_status(row: Row) -> bool:
        return bool(choose_legacy_recipient_status(row, facts_by_id.get(row["id"], {})) == value)

    if value not in NATIVE_STATUSES:
        return _Filter(has_status)
    # A stored status replaces the service's in answers, so the service's filter alone is wrong.
    has_stored_status = any(
        UPSTREAM_STATUS.get(facts.get("status", "")) == value for facts in facts_by_id.values()
    )
    return _Filter(has_status, {"status": value}, not has_stored_status)


def _build_compliance_filter(value: str, *_: Any) -> _Filter:
    is_native = value in NATIVE_COMPLIANCE_STATUSES
    return _Filter(
        lambda row: bool(derive_legacy_compliance_status(row.get("complianceStatus")) == value),
        {"complianceStatus": value} if is_native else {},
        is_native,
    )


def _build_country_filter(value: str, *_: Any) -> _Filter:
    code = find_country_alpha_2_code(value)
    if code is None:
        # A value that no recipient can have: the list is empty, not an error (contract, section 3).
        return _Filter(lambda _row: False)
    return _Filter(
        lambda row: bool(_extract_address(row).get("country") == code), {"country": code}, True
    )


def _build_city_filter(value: str, *_: Any) -> _Filter:
    city = value.casefold()
    return _Filter(
        lambda row: (
            _replace_non_text_with_empty(_extract_address(row).get("city")).casefold() == city
        )
    )


def _build_payout_method_filter(value: str, query: Mapping[str, str], _: Any) -> _Filter:
    # The service filters bank accounts by method only together with a currency.
    has_currency = bool(query.get("payoutCurrency"))
    is_native = value == current.WALLET or (value == current.BANK_TRANSFER and has_currency)
    return _Filter(
        lambda row: bool(determine_payout_method(row) == value),
        {"payoutMethod": value} if is_native else {},
        is_native,
    )


def _build_payout_currency_filter(value: str, query: Mapping[str, str], _: Any) -> _Filter:
    code = value.upper()
    if not re.fullmatch("[A-Z]{3}", code):
        return _Filter(lambda _row: False)
    is_native = query.get("payoutMethod") == current.BANK_TRANSFER
    return _Filter(
        lambda row: bool(determine_payout_currency(row) == code),
        {"currency": code} if is_native else {},
        is_native,
    )


def _build_start_date_filter(value: str, *_: Any) -> _Filter | None:
    if (span := parse_date_span(value)) is None:
        return None
    start = span[0]
    # The service filters by update time. That is safe: a row created since then was also updated
    # since then. The gateway filters the rest by creation time.
    return _Filter(
        lambda row: parse_created_at(row) >= start, {"startDate": format_timestamp(start)}
    )


def _build_end_date_filter(value: str, *_: Any) -> _Filter | None:
    span = parse_date_span(value)
    return span and _Filter(lambda row: parse_created_at(row) <= span[1])


_FILTERS: dict[str, Callable[[str, Mapping[str, str], FactsById], _Filter | None]] = {
    "search": _build_search_filter,
    "status": _build_status_filter,
    "complianceStatus": _build_compliance_filter,
    "country": _build_country_filter,
    "city": _build_city_filter,
    "payoutMethod": _build_payout_method_filter,
    "payoutCurrency": _build_payout_currency_filter,
    "startDate": _build_start_date_filter,
    "endDate": _build_end_date_filter,
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
