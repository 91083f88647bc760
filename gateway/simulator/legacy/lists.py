"""Lists with their filters and sort orders (section 4.1, List query parameters).

The operations have no error status for parameters: a filter with an unknown word matches nothing,
and an invalid order or date is ignored. Clients send filters also to the lists of batches and
payments, for which the document shows none; these work like those of recipients.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient, views
from gateway.simulator.payments import matches_search
from gateway.simulator.state import Batch, Payment, Recipient, format_timestamp

ReadValue = Callable[[AcceptedRequest, Recipient], object]

DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def filter_recipients(request: AcceptedRequest) -> list[Recipient]:
    """Lists matching recipients; ignores empty and unknown parameters. Ties are sorted by id."""
    query = request.query
    matches = [
        recipient
        for recipient in request.tenant.recipients.values()
        if not recipient.is_archived and _matches(request, recipient)
    ]
    read_value = SORT_KEYS.get(query.get("orderBy", ""), SORT_KEYS["createdAt"])
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matches.sort(key=lambda recipient: request.build_client_id(recipient.id))
    matches.sort(
        key=lambda recipient: str(read_value(request, recipient) or ""),
        reverse=query.get("sortBy") != "asc",
    )
    return matches


def _fold_case(value: object) -> str:
    return str(value or "").casefold()


def _create_field_reader(name: str) -> ReadValue:
    return lambda _, recipient: _fold_case(recipient.fields.get(name))


def _create_address_field_reader(name: str) -> ReadValue:
    return lambda _, recipient: _fold_case(recipient.address.get(name))


def _find_payout_currency(_: AcceptedRequest, recipient: Recipient) -> object:
    return recipient.primary_account.fields["currency"] if recipient.primary_account else None


SORT_KEYS: dict[str, ReadValue] = {
    "status": lambda _, recipient: views.translate_status(recipient),
    "country": _create_address_field_reader("country"),
    "city": _create_address_field_reader("city"),
    "name": _create_field_reader("name"),
    "email": _create_field_reader("email"),
    "id": lambda request, recipient: request.build_client_id(recipient.id),
    "complianceStatus": lambda _, recipient: views.translate_compliance_status(recipient),
    "createdAt": lambda _, recipient: format_timestamp(recipient.created_at),
    "updatedAt": lambda _, recipient: format_timestamp(recipient.updated_at),
    "referenceId": _create_field_reader("referenceId"),
    "type": _create_field_reader("type"),
    "firstName": _create_field_reader("firstName"),
    "lastName": _create_field_reader("lastName"),
    "language": lambda _, recipient: recipient.fields.get("language", "en"),
    "dob": _create_field_reader("dob"),
    "payoutMethod": views.find_payout_method,
    "payoutCurrency": _find_payout_currency,
    "primaryCurrency": _create_field_reader("primaryCurrency"),
}


def parse_date(value: str) -> datetime | None:
    try:
        parsed_date = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Without an offset: the document has all dates in UTC.
    return parsed_date.replace(tzinfo=UTC) if parsed_date.tzinfo is None else parsed_date


def is_in_period(query: Mapping[str, str], time: datetime) -> bool:
    """Whether a time is between `startDate` and `endDate`, which without a time includes its day."""
    start, end = parse_date(query.get("startDate", "")), parse_date(query.get("endDate", ""))
    if end is not None and DATE_PATTERN.fullmatch(query["endDate"]):
        end += timedelta(days=1) - timedelta(microseconds=1)
    return (start is None or start <= time) and (end is None or time <= end)


def _matches(request: AcceptedRequest, recipient: Recipient) -> bool:
    query, wanted = request.query, request.query.get
    search, address = wanted("search", "").casefold(), recipient.address
    texts = (_fold_case(recipient.fields.get(name)) for name in ("name", "email", "referenceId"))
    words = {
        name: SORT_KEYS[name](request, recipient)
        for name in ("status", "complianceStatus", "payoutMethod")
        if wanted(name)
    }
    return (
        any(search in text for text in texts)
        and is_in_period(query, recipient.created_at)
        and all(wanted(name) == word for name, word in words.items())
        # Clients send two- and three-letter codes in any case.
        and lenient.normalize_country(wanted("country", "")) in ("", address.get("country"))
        and wanted("city", "").casefold() in ("", _fold_case(address.get("city")))
        and wanted("payoutCurrency", "").upper() in ("", _find_payout_currency(request, recipient))
    )


FILTER_NAMES = frozenset(
    {"status", "startDate", "endDate", "recipient", "country", "sourceCurrency", "targetCurrency"}
)
PAYMENT_FILTER_NAMES = ("recipient", "country", "targetCurrency")


def filter_batches(request: AcceptedRequest, candidates: Iterable[Batch]) -> list[Batch]:
    """Filters batches; `search` matches any part of the id.

    Recipient, country and target currency match if one payment of the batch matches them all.
    """
    search = request.query.get("search", "").casefold()
    # Most lists have no filter, and building a view for each entry is slow.
    has_filter = bool(FILTER_NAMES & request.query.keys())
    return [
        batch
        for batch in candidates
        if search in request.build_client_id(batch.id).casefold()
        and (not has_filter or _matches_batch(request, batch))
    ]


def _matches_batch(request: AcceptedRequest, batch: Batch) -> bool:
    batch_view = request.build_batch(batch)
    return _matches_own_fields(request.query, batch_view, batch_view["currency"]) and (
        not any(map(request.query.get, PAYMENT_FILTER_NAMES))
        or any(
            _matches_payment(request, request.build_listed_payment(payment))
            for payment in batch.payments.values()
        )
    )


def filter_payments(
    request: AcceptedRequest,
    candidates: Iterable[Payment],
    build_view: Callable[[Payment], JsonObject],
) -> list[Payment]:
    search = request.query.get("search", "")
    has_filter = bool(FILTER_NAMES & request.query.keys())

    def matches(view: JsonObject) -> bool:
        return _matches_own_fields(
            request.query, view, view.get("sourceCurrency")
        ) and _matches_payment(request, view)

    return [
        payment
        for payment in candidates
        if matches_search(payment, search, request.build_client_id(payment.id))
        and (not has_filter or matches(build_view(payment)))
    ]


def _matches_own_fields(query: Mapping[str, str], view: JsonObject, currency: object) -> bool:
    """Compares what clients see, in their own words."""
    # A test may have removed the date; the entry then counts as the oldest.
    created = parse_date(str(view.get("createdAt"))) or datetime.min.replace(tzinfo=UTC)
    return (
        query.get("status") in (None, "", view["status"])
        and is_in_period(query, created)
        and query.get("sourceCurrency", "").upper() in ("", currency)
    )


def _matches_payment(request: AcceptedRequest, payment_view: JsonObject) -> bool:
    query, payee = request.query, payment_view["recipient"]
    wanted = query.get("recipient", "")
    id_ = request.build_client_id(request.resolve_id(wanted)) if wanted else ""
    # Of a full or a reduced recipient.
    country = payee.get("country") or (payee.get("address") or {}).get("country")
    target_currency = payment_view.get("targetCurrency")
    return (
        (not wanted or payee["id"] == id_ or payee["email"].casefold() == wanted.casefold())
        and lenient.normalize_country(query.get("country", "")) in ("", country)
        and query.get("targetCurrency", "").upper() in ("", target_currency)
    )
