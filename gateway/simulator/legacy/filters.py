"""Filters of the lists of batches and payments, which clients send although no document lists them.

They work like the filters of recipients (section 4.1): an unknown word matches nothing, and an
invalid date is ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import batch_views, lenient, payment_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.legacy.recipient_list import DATE_PATTERN, parse_date
from gateway.simulator.payment_lists import ListedPayment, matches_search
from gateway.simulator.state import Batch

FILTER_NAMES = frozenset(
    {"status", "startDate", "endDate", "recipient", "country", "sourceCurrency", "targetCurrency"}
)


def filter_batches(request: LegacyRequest, candidates: Iterable[Batch]) -> list[Batch]:
    """Filters batches; `search` matches any part of the id.

    Recipient, country and target currency match if one payment of the batch matches them all.
    """
    id_mapper, query = request.id_mapper, request.query
    search = query.get("search", "").casefold()
    payment_tests = _build_payment_predicates(request)

    def matches(batch: Batch) -> bool:
        # Most lists have no filter, and building a view for each entry is slow.
        if not FILTER_NAMES & query.keys():
            return search in id_mapper.build_client_id(batch.id).casefold()
        # Filters compare what clients see, in their own words.
        batch_view = batch_views.build_batch(id_mapper, batch)
        payment_views_of_batch = (
            payment_views.build_batch_payment_entry(id_mapper, payment)
            for payment in batch.payments.values()
        )
        return (
            search in id_mapper.build_client_id(batch.id).casefold()
            and _is_value_filter_match(query, "status", batch_view["status"])
            and _is_date_filter_match(query, batch_view)
            and _is_currency_filter_match(query, "sourceCurrency", batch_view["currency"])
            and (
                not payment_tests
                or any(
                    all(test(payment_view) for test in payment_tests)
                    for payment_view in payment_views_of_batch
                )
            )
        )

    return [batch for batch in candidates if matches(batch)]


def filter_payments(
    request: LegacyRequest,
    candidates: Iterable[ListedPayment],
    build_view: Callable[[ListedPayment], JsonObject],
) -> list[ListedPayment]:
    query = request.query
    search = query.get("search", "")
    payment_tests = _build_payment_predicates(request)

    def matches(payment: ListedPayment) -> bool:
        if not matches_search(payment, search, request.id_mapper.build_client_id(payment.id)):
            return False
        if not FILTER_NAMES & query.keys():
            return True
        payment_view = build_view(payment)
        return (
            _is_value_filter_match(query, "status", payment_view["status"])
            and _is_date_filter_match(query, payment_view)
            and _is_currency_filter_match(
                query, "sourceCurrency", payment_view.get("sourceCurrency")
            )
            and all(test(payment_view) for test in payment_tests)
        )

    return [payment for payment in candidates if matches(payment)]


def _build_payment_predicates(request: LegacyRequest) -> list[Callable[[JsonObject], bool]]:
    query, tests = request.query, list[Callable[[JsonObject], bool]]()
    if recipient := query.get("recipient"):
        recipient_id = request.id_mapper.build_client_id(request.id_mapper.resolve_id(recipient))
        tests.append(
            lambda payment_view: (
                payment_view["recipient"]["id"] == recipient_id
                or payment_view["recipient"]["email"].casefold() == recipient.casefold()
            )
        )
    if code := query.get("country"):
        tests.append(
            lambda payment_view: bool(
                _find_recipient_country(payment_view["recipient"])
                == lenient.normalize_country(code)
            )
        )
    if query.get("targetCurrency"):
        tests.append(
            lambda payment_view: _is_currency_filter_match(
                query, "targetCurrency", payment_view.get("targetCurrency")
            )
        )
    return tests


def _find_recipient_country(recipient: JsonObject) -> object:
    """Returns the country of a full or a reduced recipient."""
    return recipient.get("country") or (recipient.get("address") or {}).get("country")


def _is_value_filter_match(query: Mapping[str, str], name: str, value: object) -> bool:
    return query.get(name) in (None, "", value)


def _is_currency_filter_match(query: Mapping[str, str], name: str, currency: object) -> bool:
    return query.get(name, "").upper() in ("", currency)


def _is_date_filter_match(query: Mapping[str, str], view: JsonObject) -> bool:
    # A test may have removed the date; the entry then counts as the oldest.
    created = parse_date(str(view.get("createdAt"))) or datetime.min.replace(tzinfo=UTC)
    start, end = parse_date(query.get("startDate", "")), parse_date(query.get("endDate", ""))
    if end is not None and DATE_PATTERN.fullmatch(query["endDate"]):
        end += timedelta(days=1) - timedelta(microseconds=1)
    return (start is None or start <= created) and (end is None or created <= end)
