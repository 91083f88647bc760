"""Filters on lists of batches and payments, which clients send though no document lists them.

They work like those on recipients (legacy interface, section 4.1): the values in the answer decide,
a value that nothing has matches nothing, and a malformed date is ignored. The service has no such
parameters, so the gateway applies them to the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from mappings.batch_bodies import CACHE_SECONDS
from mappings.batch_views import extract_country
from mappings.dates import BEGINNING, parse_instant, parse_span
from mappings.errors import is_transient
from mappings.grammar import JSON, Call, Failure, Parallel
from mappings.ids import recall_legacy_ids
from mappings.kinds import to_alpha_2
from mappings.matching import Payment
from mappings.objects import derive_legacy_payment_status
from mappings.payouts import Sub
from mappings.rows import filter_rows, iterate_chunks

END = datetime.max.replace(tzinfo=UTC)

CLOCK_ERROR = timedelta(minutes=5)
"""How far a time stored by the gateway may be from the service's: clock skew and response time."""

RECIPIENTS_AT_ONCE = 200
"""How many reads of recipients are one parallel step."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a query; None or empty if not used.

    ``recipient`` is an id of the current interface or an email address. ``countries`` caches, for
    one request, the countries of recipients whose payments do not show them.
    """

    search: str = ""
    status: str | None = None
    since: datetime = BEGINNING
    until: datetime = END
    recipient: str | None = None
    country: str | None = None
    source_currency: str | None = None
    target_currency: str | None = None
    countries: dict[JSON, JSON] = field(default_factory=dict)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """``query`` has no empty parameter."""
        first, last = (parse_span(query.get(name, "")) for name in ("startDate", "endDate"))
        source, target = (query.get(f"{side}Currency") for side in ("source", "target"))
        country = query.get("country")
        return cls(
            search=query.get("search", "").casefold(),
            status=query.get("status"),
            since=first[0] if first else BEGINNING,
            until=last[1] if last else END,
            recipient=query.get("recipient"),
            country=(to_alpha_2(country) or country) if country else None,
            source_currency=source.strip().upper() if source else None,
            target_currency=target.strip().upper() if target else None,
        )

    def __bool__(self) -> bool:
        return bool(
            self.search or self.status or self.source_currency or self.pays or self.are_dated
        )

    @property
    def are_dated(self) -> bool:
        return (self.since, self.until) != (BEGINNING, END)

    @property
    def pays(self) -> bool:
        """Whether a criterion concerns payments, so that a batch's own fields cannot decide it."""
        return bool(self.recipient or self.country or self.target_currency)

    def is_close(self, created: JSON) -> bool:
        """Whether a time stored by the gateway is too close to a bound to be compared with it."""
        at = parse_instant(created)
        return any(abs(at - bound) <= CLOCK_ERROR for bound in (self.since, self.until))

    def allow_time(self, created: JSON) -> bool:
        return self.since <= parse_instant(created) <= self.until

    def allow_batch(self, status: JSON, created: JSON, currency: JSON) -> bool | None:
        """Whether a batch passes the filters; None if only its summary or payments can decide.

        An argument of None is not known.
        """
        tests = (
            (self.status is not None, status, status == self.status),
            (self.are_dated, created, self.allow_time(created)),
            (self.source_currency is not None, currency, currency == self.source_currency),
        )
        asked = [(told, passes) for is_asked, told, passes in tests if is_asked]
        if any(told is not None and not passes for told, passes in asked):
            return False
        return None if self.pays or any(told is None for told, _ in asked) else True

    def allow_payment(self, payment: Payment) -> bool:
        """Whether a payment passes the filters except ``search`` and ``country``.

        Those two may need further reads.
        """
        created = payment.get("createdAt") or (payment.get("batch") or {}).get("createdAt")
        return (
            self.status in (None, derive_legacy_payment_status(payment))
            and (not self.are_dated or self.allow_time(created))
            and self.source_currency in (None, payment.get("sourceCurrency"))
            and self._allow_recipient_and_target(payment)
        )

    def _allow_recipient_and_target(self, payment: Payment) -> bool:
        payee = payment.get("recipient") or {}
        return (
            self.recipient in (None, payee.get("id"))
            or str(self.recipient).casefold() == str(payee.get("email")).casefold()
        ) and self.target_currency in (None, payment.get("targetCurrency"))


def filter_payments(filters: Filters, payments: Sequence[Payment]) -> Sub:
    """Return the payments that pass, in their order.

    GET /recipients/:id  with ``country``, for each recipient whose country no payment shows
    """
    found = filter_rows(payments, filters.allow_payment)
    if filters.search:
        found = yield from search_payments(filters.search, found)
    return (yield from _in_country(filters, found))


def has_matching_payment(filters: Filters, payments: Sequence[Payment]) -> Sub:
    """Whether a payment of a batch passes the filters by recipient, country and target currency."""
    found = filter_rows(payments, filters._allow_recipient_and_target)  # noqa: SLF001
    return bool((yield from _in_country(filters, found)))


def _in_country(filters: Filters, payments: Sequence[Payment]) -> Sub:
    if filters.country is None:
        return payments
    countries = filters.countries
    untold = (_payee_id(one) for one in payments if not extract_country(one.get("recipient") or {}))
    unread = dict.fromkeys(id_ for id_ in untold if id_ and id_ not in countries)
    for some in iterate_chunks(unread, RECIPIENTS_AT_ONCE):
        calls = [Call("GET", f"/recipients/{id_}", keeps=CACHE_SECONDS) for id_ in some]
        for id_, answer in zip(some, (yield Parallel(calls)), strict=True):
            if isinstance(answer, Failure):
                # A list without these payments would look complete.
                if is_transient(answer):
                    raise answer
                countries[id_] = None
            else:
                countries[id_] = extract_country(answer["recipient"])

    def is_there(payment: Payment) -> bool:
        told = extract_country(payment.get("recipient") or {})
        return (told or countries.get(_payee_id(payment))) == filters.country

    return filter_rows(payments, is_there)


def _payee_id(payment: Payment) -> JSON:
    return (payment.get("recipient") or {}).get("id")


def search_payments(search: str, payments: Sequence[Payment]) -> Sub:
    wanted, names = search.casefold(), (yield recall_legacy_ids(payments))
    return [one for one in payments if _mentions(one, wanted, str(names.get(one["id"], one["id"])))]


def _mentions(payment: Payment, wanted: str, known_as: str) -> bool:
    """Whether the recipient, the memo or the client's id of the payment contains the text."""
    recipient = payment.get("recipient") or {}
    texts = [recipient.get(name) for name in ("name", "email", "referenceId")]
    return any(
        wanted in str(text).casefold() for text in (*texts, known_as, payment.get("memo")) if text
    )
