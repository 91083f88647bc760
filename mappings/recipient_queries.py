"""Translates the query of the recipient list; its parameters differ in meaning on the two sides.

If the service can answer the query, one call suffices. Otherwise the gateway reads the whole list
and applies the filters and the order of the legacy list (legacy interface, section 4.1).
"""

import re
from collections.abc import Callable, Iterator, Mapping
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

    test: Callable[[Row, Facts], bool]
    prefilter: Mapping[str, str] = {}
    is_exact: bool = False
    """Whether the service's filter gives exactly the rows that pass the test."""


def build_list_query(query: Mapping[str, str], facts_by_id: FactsById) -> ListQuery:
    """Builds the step for a list query; unknown parameters are ignored."""
    filters = [*_build_filters(query, facts_by_id)]
    prefilter = {name: value for each in filters for name, value in each.prefilter.items()}
    order = query["orderBy"] if query.get("orderBy") in SORT_FIELDS else "createdAt"
    is_descending = query.get("sortBy", "").lower() != "asc"
    page = parse_page_params(query)
    native_sort = {"orderBy": order, "sortBy": "desc" if is_descending else "asc"}
    # The service still lists recipients whose deletion failed, so its own paging would be wrong.
    has_undeleted = any(facts.get("still_there") for facts in facts_by_id.values())
    deleted_ids = frozenset(id_ for id_, facts in facts_by_id.items() if facts.get("deleted"))
    is_exact = all(each.is_exact for each in filters)
    is_native = is_exact and order in NATIVE_SORT_FIELDS and not has_undeleted

    def is_match(row: Row) -> bool:
        facts = facts_by_id.get(row["id"], {})
        return all(each.test(row, facts) for each in filters)

    return ListQuery(
        "/recipients",
        page.number,
        page.size,
        is_hidden=lambda row: is_deleted_for_clients(row, facts_by_id.get(row["id"], {})),
        is_match=is_match,
        sort_key=lambda row: _fold_case(get_value(order, row, facts_by_id.get(row["id"], {}))),
        is_descending=is_descending,
        native_query={**page.build_query(), **prefilter, **native_sort} if is_native else None,
        prefilter=prefilter,
        excluded_ids=deleted_ids,
        is_indexed=True,
        is_sorted_by_id=order == "id",
    )


def _build_filters(query: Mapping[str, str], facts_by_id: FactsById) -> Iterator[_Filter]:
    """Builds the filters in a fixed order, so that equal queries make equal calls."""
    if search := query.get("search"):
        search_text = search.casefold()
        yield _Filter(
            lambda row, _facts: any(
                search_text in get_value(name, row, {}).casefold()
                for name in ("name", "email", "referenceId")
            )
        )
    if status := query.get("status"):
        # A stored status replaces the service's in answers, so the service's filter alone is wrong.
        has_stored_status = any(
            UPSTREAM_STATUS.get(facts.get("status", "")) == status for facts in facts_by_id.values()
        )
        name = "status" if status in NATIVE_STATUSES else None
        yield _build_value_filter("status", status, name, is_exact=not has_stored_status)
    if compliance := query.get("complianceStatus"):
        name = "complianceStatus" if compliance in NATIVE_COMPLIANCE_STATUSES else None
        yield _build_value_filter("complianceStatus", compliance, name)
    if country := query.get("country"):
        yield _build_value_filter("country", find_country_alpha_2_code(country), "country")
    if city := query.get("city"):
        yield _Filter(
            lambda row, facts: bool(get_value("city", row, facts).casefold() == city.casefold())
        )
    method, currency = query.get("payoutMethod"), query.get("payoutCurrency", "").upper()
    if method:
        # The service filters bank accounts by method only together with a currency.
        is_native = method == current.WALLET or (method == current.BANK_TRANSFER and currency)
        yield _build_value_filter("payoutMethod", method, "payoutMethod" if is_native else None)
    if currency:
        code = currency if re.fullmatch("[A-Z]{3}", currency) else None
        name = "currency" if method == current.BANK_TRANSFER else None
        yield _build_value_filter("payoutCurrency", code, name)
    if (start_span := parse_date_span(query.get("startDate", ""))) is not None:
        start = start_span[0]
        # The service filters by update time. That is safe: a row created since then was also
        # updated since then. The gateway filters the rest by creation time.
        yield _Filter(
            lambda row, _facts: parse_created_at(row) >= start,
            {"startDate": format_timestamp(start)},
        )
    if (end_span := parse_date_span(query.get("endDate", ""))) is not None:
        end = end_span[1]
        yield _Filter(lambda row, _facts: parse_created_at(row) <= end)


def _build_value_filter(
    field: str, wanted: str | None, native_name: str | None, *, is_exact: bool = True
) -> _Filter:
    """Builds a filter for a value by which rows can be sorted.

    ``wanted`` is None for a value that no recipient can have: the list is empty, not an error
    (contract, section 3). ``native_name`` is the service's parameter if it can filter by the value.
    """
    prefilter = {native_name: wanted} if native_name and wanted else {}
    return _Filter(
        lambda row, facts: bool(get_value(field, row, facts) == wanted),
        prefilter,
        bool(prefilter) and is_exact,
    )


# Values of a row, by which it is filtered and sorted


def get_value(name: str, row: Row, facts: Facts) -> Any:
    """Returns a text or a time; an empty text if the row has no such value."""
    if name in _TEXT_FIELDS:
        value = row.get(name)
    elif name in _ADDRESS_FIELDS:
        value = (row.get("address") or {}).get(name)
    else:
        value = _COMPUTED_VALUES[name](row, facts)
    return value if isinstance(value, str | datetime) else ""


def parse_created_at(row: Row) -> datetime:
    return parse_instant_or_earliest(row.get("createdAt"))


def _determine_payout_method(row: Row, _facts: Facts) -> JSON:
    primary = find_primary_account(row)
    return determine_account_type(primary) if primary else row.get("payoutMethod")


def _determine_payout_currency(row: Row, _facts: Facts) -> JSON:
    """Returns the currency of payouts; None if it is known that the recipient has no account."""
    primary = find_primary_account(row)
    if primary is None and row.get("accounts") is not None:
        return None
    return (primary or {}).get("currency") or row.get("primaryCurrency")


def _fold_case(value: Any) -> Any:
    # People expect "adam" before "Zoe"; filters compare the same values with their case.
    return value.casefold() if isinstance(value, str) else value


_TEXT_FIELDS = (
    *("id", "name", "email", "referenceId", "firstName", "lastName", "type", "language", "dob"),
    "primaryCurrency",
)
_ADDRESS_FIELDS = ("country", "city", "region", "postalCode")

_COMPUTED_VALUES: Mapping[str, Callable[[Row, Facts], Any]] = {
    "status": choose_legacy_recipient_status,
    "complianceStatus": lambda row, _: derive_legacy_compliance_status(row.get("complianceStatus")),
    "payoutMethod": _determine_payout_method,
    "payoutCurrency": _determine_payout_currency,
    "createdAt": lambda row, _: parse_created_at(row),
    "updatedAt": lambda row, _: parse_instant_or_earliest(row.get("updatedAt")),
}
SORT_FIELDS = frozenset({*_TEXT_FIELDS, *_ADDRESS_FIELDS, *_COMPUTED_VALUES})
"""Legacy interface, section 4.1, orderBy: "status, country, city, name, email, id,
complianceStatus and others"."""
