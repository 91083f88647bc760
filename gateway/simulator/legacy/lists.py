"""Lists with their filters and sort orders (section 4.1, List query parameters).

The operations have no error status for parameters: a filter with an unknown word matches nothing,
and an invalid order or date is ignored. Clients send filters also to the lists of batches and
payments, for which the document shows none; these work like those of recipients. All of them
compare what clients see, in their own words.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.batches import matches_search
from gateway.simulator.legacy import bodies
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Batch, Payment
from gateway.simulator.validation import JsonObject

DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
SEARCHED_FIELDS = ("name", "email", "referenceId")
SORT_FIELDS = frozenset(
    {
        "status", "country", "city", "name", "email", "id", "complianceStatus", "createdAt",
        "updatedAt", "referenceId", "type", "firstName", "lastName", "language", "dob",
        "payoutMethod", "payoutCurrency", "primaryCurrency",
    }
)  # fmt: skip
PAYMENT_FILTER_NAMES = ("recipient", "country", "targetCurrency")


def list_recipients(request: AcceptedRequest) -> JsonObject:
    """Lists matching recipients; ignores empty and unknown parameters. Ties are sorted by id."""
    query, order = request.query, request.query.get("orderBy", "")
    rows = [
        row
        for recipient in request.tenant.recipients.values()
        if not recipient.is_archived
        if _matches_recipient(query, row := request.build_recipient(recipient))
    ]
    sort_field = order if order in SORT_FIELDS else "createdAt"
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    rows.sort(key=lambda row: str(row["id"]))
    is_descending = query.get("sortBy") != "asc"
    if sort_field != "id":
        rows.sort(key=lambda row: _read_text(row, sort_field), reverse=is_descending)
    elif is_descending:
        rows.reverse()
    return request.build_page("recipients", rows, dict)


def _read_text(recipient: JsonObject, name: str) -> str:
    """Returns a shown field of a recipient, without case."""
    value = recipient.get(name)
    if name in ("country", "city"):
        value = recipient["address"][name]
    if name == "payoutCurrency" and "primary" in recipient["payout"]:
        value = recipient["payout"]["primary"]["currency"]["code"]
    return str(value or "").casefold()


def _matches_recipient(query: Mapping[str, str], recipient: JsonObject) -> bool:
    search = query.get("search", "").casefold()
    country = bodies.normalize_country(query.get("country", ""))
    return (
        any(search in _read_text(recipient, name) for name in SEARCHED_FIELDS)
        and _matches_words_and_period(query, recipient)
        # Clients send two- and three-letter codes in any case.
        and country in ("", recipient["address"]["country"])
        and all(
            query.get(name, "").casefold() in ("", _read_text(recipient, name))
            for name in ("city", "payoutCurrency")
        )
    )


def _matches_words_and_period(query: Mapping[str, str], row: JsonObject) -> bool:
    """Compares words, and `createdAt` with a period; an end without a time includes its day."""
    created = datetime.fromisoformat(row["createdAt"])
    start, end = _parse_date(query.get("startDate", "")), _parse_date(query.get("endDate", ""))
    if end is not None and DATE_PATTERN.fullmatch(query["endDate"]):
        end += timedelta(days=1) - timedelta(microseconds=1)
    return (
        (start is None or start <= created)
        and (end is None or created <= end)
        and all(
            query.get(name) in (None, "", row[name])
            for name in ("status", "complianceStatus", "payoutMethod")
            if name in row
        )
    )


def _parse_date(value: str) -> datetime | None:
    try:
        parsed_date = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Without an offset: the document has all dates in UTC.
    return parsed_date.replace(tzinfo=UTC) if parsed_date.tzinfo is None else parsed_date


def list_batches(request: AcceptedRequest) -> JsonObject:
    """Lists matching batches, newest first; `search` matches any part of the id.

    Recipient, country and target currency match if one payment of the batch matches them all.
    """
    search = request.query.get("search", "").casefold()
    matches = [
        batch
        for batch in request.tenant.batches.values()
        if search in request.build_client_id(batch.id).casefold() and _matches_batch(request, batch)
    ]
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matches.sort(key=lambda batch: request.build_client_id(batch.id))
    matches.sort(key=lambda batch: batch.created_at, reverse=True)
    return request.build_page("batches", matches, request.build_batch)


def _matches_batch(request: AcceptedRequest, batch: Batch) -> bool:
    return _matches_own_fields(request.query, request.build_batch(batch), "currency") and (
        not any(map(request.query.get, PAYMENT_FILTER_NAMES))
        or any(
            _matches_payment(request, request.build_listed_payment(payment))
            for payment in batch.payments.values()
        )
    )


def filter_payments(request: AcceptedRequest, candidates: list[Payment]) -> list[Payment]:
    search = request.query.get("search", "")
    return [
        payment
        for payment in candidates
        if matches_search(payment, search, request.build_client_id(payment.id))
        and _matches_own_fields(
            request.query, row := request.build_listed_payment(payment), "sourceCurrency"
        )
        and _matches_payment(request, row)
    ]


def _matches_own_fields(query: Mapping[str, str], row: JsonObject, currency_field: str) -> bool:
    currency = query.get("sourceCurrency", "").upper()
    return _matches_words_and_period(query, row) and currency in ("", row.get(currency_field))


def _matches_payment(request: AcceptedRequest, row: JsonObject) -> bool:
    query, payee = request.query, row["recipient"]
    wanted = query.get("recipient", "")
    id_ = request.build_client_id(request.resolve_id(wanted)) if wanted else ""
    return (
        (not wanted or payee["id"] == id_ or payee["email"].casefold() == wanted.casefold())
        and bodies.normalize_country(query.get("country", "")) in ("", payee["country"])
        and query.get("targetCurrency", "").upper() in ("", row.get("targetCurrency"))
    )
