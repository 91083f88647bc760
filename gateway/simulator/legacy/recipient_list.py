"""The list of recipients with its filters and sort orders (section 4.1, List query parameters).

The operation has no error status for parameters: a filter with an unknown word matches nobody, and
an invalid order or date is ignored.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.legacy import lenient, recipient_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import Recipient, format_timestamp

ReadValue = Callable[[LegacyRequest, Recipient], object]

DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def filter_recipients(request: LegacyRequest) -> list[Recipient]:
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


def _find_payout_currency(_: LegacyRequest, recipient: Recipient) -> object:
    return recipient.primary_account.fields["currency"] if recipient.primary_account else None


SORT_KEYS: dict[str, ReadValue] = {
    "status": lambda _, recipient: recipient_views.translate_status(recipient),
    "country": _create_address_field_reader("country"),
    "city": _create_address_field_reader("city"),
    "name": _create_field_reader("name"),
    "email": _create_field_reader("email"),
    "id": lambda request, recipient: request.build_client_id(recipient.id),
    "complianceStatus": lambda _, recipient: recipient_views.translate_compliance_status(recipient),
    "createdAt": lambda _, recipient: format_timestamp(recipient.created_at),
    "updatedAt": lambda _, recipient: format_timestamp(recipient.updated_at),
    "referenceId": _create_field_reader("referenceId"),
    "type": _create_field_reader("type"),
    "firstName": _create_field_reader("firstName"),
    "lastName": _create_field_reader("lastName"),
    "language": lambda _, recipient: recipient.fields.get("language", "en"),
    "dob": _create_field_reader("dob"),
    "payoutMethod": recipient_views.find_payout_method,
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


def _matches(request: LegacyRequest, recipient: Recipient) -> bool:
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
