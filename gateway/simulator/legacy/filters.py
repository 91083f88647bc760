"""Filters of the lists of batches and payments, which clients send although no document lists them.

They work like the filters of recipients (section 4.1): an unknown word matches nothing, and an
invalid date is ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import batch_views, lenient
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.legacy.recipient_list import is_in_period, parse_date
from gateway.simulator.payments import matches_search
from gateway.simulator.state import Batch, Payment

FILTER_NAMES = frozenset(
    {"status", "startDate", "endDate", "recipient", "country", "sourceCurrency", "targetCurrency"}
)
PAYMENT_FILTER_NAMES = ("recipient", "country", "targetCurrency")


def filter_batches(request: LegacyRequest, candidates: Iterable[Batch]) -> list[Batch]:
    """Filters batches; `search` matches any part of the id.

    Recipient, country and target currency match if one payment of the batch matches them all.
    """
    query = request.query
    search = query.get("search", "").casefold()

    def matches(batch: Batch) -> bool:
        if search not in request.build_client_id(batch.id).casefold():
            return False
        # Most lists have no filter, and building a view for each entry is slow.
        if not FILTER_NAMES & query.keys():
            return True
        # Filters compare what clients see, in their own words.
        batch_view = batch_views.build_batch(request, batch)
        payments = (
            batch_views.build_batch_payment_entry(request, payment)
            for payment in batch.payments.values()
        )
        return (
            _is_value_filter_match(query, "status", batch_view["status"])
            and _is_date_filter_match(query, batch_view)
            and _is_currency_filter_match(query, "sourceCurrency", batch_view["currency"])
            and (
                not any(map(query.get, PAYMENT_FILTER_NAMES))
                or any(_matches_payment(request, payment) for payment in payments)
            )
        )

    return [batch for batch in candidates if matches(batch)]


def filter_payments(
    request: LegacyRequest,
    candidates: Iterable[Payment],
    build_view: Callable[[Payment], JsonObject],
) -> list[Payment]:
    query = request.query
    search = query.get("search", "")

    def matches(payment: Payment) -> bool:
        if not matches_search(payment, search, request.build_client_id(payment.id)):
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
            and _matches_payment(request, payment_view)
        )

    return [payment for payment in candidates if matches(payment)]


def _matches_payment(request: LegacyRequest, payment_view: JsonObject) -> bool:
    query, payee = request.query, payment_view["recipient"]
    wanted = query.get("recipient", "")
    id_ = request.build_client_id(request.resolve_id(wanted)) if wanted else ""
    # Of a full or a reduced recipient.
    country = payee.get("country") or (payee.get("address") or {}).get("country")
    return (
        (not wanted or payee["id"] == id_ or payee["email"].casefold() == wanted.casefold())
        and lenient.normalize_country(query.get("country", "")) in ("", country)
        and _is_currency_filter_match(query, "targetCurrency", payment_view.get("targetCurrency"))
    )


def _is_value_filter_match(query: Mapping[str, str], name: str, value: object) -> bool:
    return query.get(name) in (None, "", value)


def _is_currency_filter_match(query: Mapping[str, str], name: str, currency: object) -> bool:
    return query.get(name, "").upper() in ("", currency)


def _is_date_filter_match(query: Mapping[str, str], view: JsonObject) -> bool:
    # A test may have removed the date; the entry then counts as the oldest.
    created = parse_date(str(view.get("createdAt"))) or datetime.min.replace(tzinfo=UTC)
    return is_in_period(query, created)
