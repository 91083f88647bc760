"""The filters that clients send with lists of batches and payments, which the documents do not list there.

They mean what the same words mean for recipients (legacy interface, section 4.1): what is shown decides,
a value that nothing has finds nothing, a date that is none is ignored. The service has no such
parameters, so they are decided here, over the whole list.
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
"""How far the gateway's clock, and the time that a create takes, may be from the service's date."""

RECIPIENTS_AT_ONCE = 200
"""How many recipients are read side by side before the next are asked for."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a query asks of batches or payments; None or empty where it does not.

    ``recipient`` is an id of the current interface or an address. ``countries`` are those of recipients
    that payments do not tell, read once for a request.
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
        """Whether it asks for what only payments tell, also of a batch."""
        return bool(self.recipient or self.country or self.target_currency)

    def is_close(self, created: JSON) -> bool:
        """Whether the clock's error decides if something created here was created in time."""
        at = parse_instant(created)
        return any(abs(at - bound) <= CLOCK_ERROR for bound in (self.since, self.until))

    def allow_time(self, created: JSON) -> bool:
        return self.since <= parse_instant(created) <= self.until

    def allow_batch(self, status: JSON, created: JSON, currency: JSON) -> bool | None:
        """Whether a batch passes, by what is told of it; of the arguments None is not told.

        None if only its summary, or its payments, can tell.
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
        """All but ``search`` and ``country``, for which more may have to be read."""
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
    """The payments that pass, in their order.

    GET /recipients/:id of each recipient whose country is asked for and not told, once for a request
    """
    found = filter_rows(payments, filters.allow_payment)
    if filters.search:
        found = yield from search_payments(filters.search, found)
    return (yield from _in_country(filters, found))


def has_matching_payment(filters: Filters, payments: Sequence[Payment]) -> Sub:
    """Whether one of a batch's payments has the recipient, country and target currency asked for."""
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
    """Whether its recipient, its memo or its id, as the client knows that, holds the text."""
    recipient = payment.get("recipient") or {}
    texts = [recipient.get(name) for name in ("name", "email", "referenceId")]
    return any(
        wanted in str(text).casefold() for text in (*texts, known_as, payment.get("memo")) if text
    )
