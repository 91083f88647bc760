"""Filters on lists of batches and payments; clients send them though no document lists them.

They work like those on recipients (legacy interface, section 4.1): the values in the answer decide,
an unknown value matches nothing, and a malformed date is ignored. The service has no such
parameters, so the gateway applies them to the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from mappings.batch_views import extract_recipient_country
from mappings.dates import EARLIEST_INSTANT, parse_date_span, parse_instant_or_earliest
from mappings.effects import JSON, LoadFacts, SubFlow
from mappings.failures import Failure, is_retryable_read_failure
from mappings.field_types import find_country_alpha_2_code
from mappings.lazy_sequences import filter_rows
from mappings.matching import Payment, extract_recipient_id
from mappings.objects import derive_legacy_payment_status
from mappings.payment_recipients import read_recipients

LATEST_INSTANT = datetime.max.replace(tzinfo=UTC)

MAX_CLOCK_ERROR = timedelta(minutes=5)
"""Maximum difference between stored times and the service's: clock skew and response time."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a query; None or empty if not used.

    ``recipient`` is an id of the current interface or an email address. ``countries`` caches, for
    one request, the countries of recipients whose payments do not show them.
    """

    search: str = ""
    status: str | None = None
    since: datetime = EARLIEST_INSTANT
    until: datetime = LATEST_INSTANT
    recipient: str | None = None
    country: str | None = None
    source_currency: str | None = None
    target_currency: str | None = None
    countries: dict[JSON, JSON] = field(default_factory=dict)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Filters:
        """Parses the filters; the caller has removed empty parameters from ``query``."""
        start_span = parse_date_span(query.get("startDate", ""))
        end_span = parse_date_span(query.get("endDate", ""))
        source_currency, target_currency = query.get("sourceCurrency"), query.get("targetCurrency")
        country = query.get("country")
        return cls(
            search=query.get("search", "").casefold(),
            status=query.get("status"),
            since=start_span[0] if start_span else EARLIEST_INSTANT,
            until=end_span[1] if end_span else LATEST_INSTANT,
            recipient=query.get("recipient"),
            # An unknown country remains unchanged, and matches nothing.
            country=(find_country_alpha_2_code(country) or country) if country else None,
            source_currency=source_currency.strip().upper() if source_currency else None,
            target_currency=target_currency.strip().upper() if target_currency else None,
        )

    def __bool__(self) -> bool:
        own_criteria = self.search or self.status or self.source_currency or self.has_dates
        return bool(own_criteria or self.has_payment_criteria)

    @property
    def has_dates(self) -> bool:
        return (self.since, self.until) != (EARLIEST_INSTANT, LATEST_INSTANT)

    @property
    def has_payment_criteria(self) -> bool:
        """Whether a criterion concerns payments, so that a batch's own fields cannot decide it."""
        return bool(self.recipient or self.country or self.target_currency)

    def is_near_date_bound(self, created: JSON) -> bool:
        """Whether a time stored by the gateway is too close to a bound to be compared with it."""
        instant = parse_instant_or_earliest(created)
        return any(abs(instant - bound) <= MAX_CLOCK_ERROR for bound in (self.since, self.until))

    def is_creation_time_matching(self, created: JSON) -> bool:
        return self.since <= parse_instant_or_earliest(created) <= self.until

    def evaluate_batch_filters(self, status: JSON, created: JSON, currency: JSON) -> bool | None:
        """Whether a batch passes the filters; None if only its summary or payments can decide.

        None as an argument means that the value is not known.
        """
        tests = (
            (self.status is not None, status, status == self.status),
            (self.has_dates, created, self.is_creation_time_matching(created)),
            (self.source_currency is not None, currency, currency == self.source_currency),
        )
        applied_tests = [(value, passes) for is_applied, value, passes in tests if is_applied]
        if any(value is not None and not passes for value, passes in applied_tests):
            return False
        is_open = self.has_payment_criteria or any(value is None for value, _ in applied_tests)
        return None if is_open else True

    def is_payment_matching(self, payment: Payment) -> bool:
        """Whether a payment passes the filters except ``search`` and ``country``.

        Those two may need further reads.
        """
        created = payment.get("createdAt") or (payment.get("batch") or {}).get("createdAt")
        return (
            self.status in (None, derive_legacy_payment_status(payment))
            and (not self.has_dates or self.is_creation_time_matching(created))
            and self.source_currency in (None, payment.get("sourceCurrency"))
            and self.is_recipient_and_target_matching(payment)
        )

    def is_recipient_and_target_matching(self, payment: Payment) -> bool:
        payee = payment.get("recipient") or {}
        return (
            self.recipient in (None, payee.get("id"))
            or str(self.recipient).casefold() == str(payee.get("email")).casefold()
        ) and self.target_currency in (None, payment.get("targetCurrency"))


def filter_payments(filters: Filters, payments: Sequence[Payment]) -> SubFlow:
    """Returns the payments that pass, in their order.

    GET /recipients/:id  with country, for each recipient whose country no payment shows
    """
    passing_payments = filter_rows(payments, filters.is_payment_matching)
    if filters.search:
        passing_payments = yield from search_payments(filters.search, passing_payments)
    return (yield from _filter_by_country(filters, passing_payments))


def has_matching_payment(filters: Filters, payments: Sequence[Payment]) -> SubFlow:
    """Whether a payment of a batch passes the filters by recipient, country and target currency."""
    passing_payments = filter_rows(payments, filters.is_recipient_and_target_matching)
    return bool((yield from _filter_by_country(filters, passing_payments)))


def _filter_by_country(filters: Filters, payments: Sequence[Payment]) -> SubFlow:
    if filters.country is None:
        return payments
    countries = filters.countries
    unknown_ids = (
        extract_recipient_id(listed_payment)
        for listed_payment in payments
        if not extract_recipient_country(listed_payment.get("recipient") or {})
    )
    unread_ids = (id_ for id_ in unknown_ids if id_ and id_ not in countries)
    countries |= yield from read_recipients(unread_ids, _extract_country_of_answer)

    def is_in_country(payment: Payment) -> bool:
        country = extract_recipient_country(payment.get("recipient") or {})
        return (country or countries.get(extract_recipient_id(payment))) == filters.country

    return filter_rows(payments, is_in_country)


def _extract_country_of_answer(answer: JSON) -> JSON:
    if not isinstance(answer, Failure):
        return extract_recipient_country(answer["recipient"])
    # A list without these payments would look complete.
    if is_retryable_read_failure(answer):
        raise answer
    return None


def search_payments(search: str, payments: Sequence[Payment]) -> SubFlow:
    # Clients search for their own ids, not for the service's.
    search_text = search.casefold()
    legacy_ids = yield LoadFacts("legacy id", ids=tuple(str(each["id"]) for each in payments))
    return [
        payment
        for payment in payments
        if _has_search_text(payment, search_text, str(legacy_ids.get(payment["id"], payment["id"])))
    ]


def _has_search_text(payment: Payment, search_text: str, legacy_id: str) -> bool:
    """Whether the recipient, the memo or the client's id of the payment contains the text."""
    recipient = payment.get("recipient") or {}
    texts = [recipient.get(name) for name in ("name", "email", "referenceId")]
    texts += [legacy_id, payment.get("memo")]
    return any(search_text in str(text).casefold() for text in texts if text)
