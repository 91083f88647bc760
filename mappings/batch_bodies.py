"""Payments in request bodies: validation, lookup of recipients, and the bodies sent upstream."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from mappings import money, paging, settling
from mappings.banking import empty, invalid
from mappings.batch_views import Batch, drop_nulls
from mappings.grammar import (
    JSON,
    Call,
    Invalid,
    Parallel,
    Problem,
    ProblemList,
    Recall,
    Unreachable,
)
from mappings.ids import SHAPE
from mappings.kinds import check_amount
from mappings.matching import Entry, Payment, recipient_id
from mappings.objects import Facts, derive_legacy_status, is_gone
from mappings.payouts import Sub
from mappings.rows import iterate_chunks, map_rows

MOST_ADDRESSES = 1000
"""How many distinct email addresses the payments of one request may name: each costs one call."""

CACHE_SECONDS = 60
"""How long the response to a recipient lookup may be served from the cache."""


class Sent(NamedTuple):
    """A payment in a request body, and its location there.

    ``container`` is the list that holds it and ``position`` its index; without a position,
    ``container`` is the prefix of its fields.
    """

    body: Mapping[str, JSON]
    holder: str
    told: frozenset[str | None] = frozenset()
    """Full names of the fields that failed validation and were removed from ``body``."""
    number: int = -1

    @property
    def place(self) -> str:
        return self.holder if self.number < 0 else f"{self.holder}[{self.number}]."

    @property
    def recipient(self) -> Mapping[str, JSON]:
        return self.body.get("recipient") or {}

    @property
    def amount_side(self) -> str:
        return "source" if self.body.get("sourceAmount") else "target"


def collect_sent_payments(
    payments: Sequence[Mapping[str, JSON]] | None,
    list_name: str = "payments",
    problems: Sequence[Problem] = (),
) -> Sequence[Sent]:
    told = frozenset(problem.field for problem in problems)
    those = payments or []
    places = range(len(those))
    return map_rows(lambda body, place: Sent(body, list_name, told, place), those, places)


# Validation


def validate_payment(sent: Sent) -> Sequence[Problem]:
    """Validate a payment to add, apart from what depends on its batch."""
    body, told = sent.body, sent.told
    recipient = body.get("recipient") or {}
    id_ = recipient.get("id")
    found: list[Problem] = []
    if told and f"{sent.place}recipient.email" in told:
        pass  # reported already: the client did name a recipient
    elif id_:
        if not (id_.startswith("R-") and SHAPE.fullmatch(id_)):
            found.append(invalid(f"{sent.place}recipient.id", "is not the id of a recipient"))
    elif not recipient.get("email"):
        found.append(empty(f"{sent.place}recipient.id"))
    if not (body.get("sourceAmount") or body.get("targetAmount")) and not (
        {f"{sent.place}{side}Amount" for side in ("source", "target")} & told
    ):
        found.append(empty(f"{sent.place}sourceAmount"))
    if body.get("targetAmount"):
        found += validate_amounts(sent)
    return found


def drop_unchanged_fields(sent: Sent, shown: Payment | None) -> Sent:
    """Remove from a change the values that the payment has already.

    Clients read a payment, change one field and send the whole object back.
    """
    if shown is None:
        return sent
    # The client may send back amounts that it read before the batch became a draft.
    shown = {**(shown.get("told") or {}), **drop_nulls(shown)}
    body, arrives_as = dict(sent.body), shown.get("targetCurrency")
    if _is_same(body.get("sourceAmount"), shown.get("sourceAmount")):
        del body["sourceAmount"]
    is_same = _is_same(body.get("targetAmount"), shown.get("targetAmount"))
    if is_same and body.get("targetCurrency") in (None, arrives_as):
        del body["targetAmount"]
    if not body.get("targetAmount") and body.get("targetCurrency") == arrives_as:
        body.pop("targetCurrency", None)
    if (body.get("memo") or None) == (shown.get("memo") or None):
        body.pop("memo", None)
    return sent._replace(body=body)


def _is_same(amount: JSON, shown: JSON) -> bool:
    read = money.parse_amount(amount)
    return read is not None and read == money.parse_amount(shown)


def drop_malformed_amounts(sent: Sent) -> tuple[Sent, list[Problem]]:
    """Return a payment without its malformed amounts, and a problem for each of them."""
    faults = {
        name: fault
        for name in ("sourceAmount", "targetAmount")
        if (text := sent.body.get(name)) is not None and (fault := check_amount(text))
    }
    if not faults:
        return sent, []
    problems = [invalid(f"{sent.place}{name}", fault) for name, fault in faults.items()]
    body = {name: value for name, value in sent.body.items() if name not in faults}
    told = sent.told.union(problem.field for problem in problems)
    return sent._replace(body=body, told=told), problems


def validate_addresses(payments: Iterable[Sent]) -> list[Problem]:
    """Return a problem if the payments name more addresses than one request may look up."""
    addresses: set[str] = set()
    for sent in payments:
        if sent.recipient.get("id") or not (address := sent.recipient.get("email")):
            continue
        addresses.add(address)
        # Stop here: a body may have a hundred thousand payments.
        if len(addresses) > MOST_ADDRESSES:
            what = f"is one address more than the {MOST_ADDRESSES:,} that a request may name"
            return [invalid(f"{sent.place}recipient.email", f"{what}; give ids of recipients")]
    return []


def validate_amounts(sent: Sent) -> Iterator[Problem]:
    if sent.body.get("sourceAmount") and sent.body.get("targetAmount"):
        yield invalid(f"{sent.place}targetAmount", "and sourceAmount cannot both be given")
    if sent.body.get("targetAmount") and not sent.body.get("targetCurrency"):
        yield empty(f"{sent.place}targetCurrency")


def batch_currency(body: Mapping[str, JSON]) -> str | None:
    """Return ``sourceCurrency``, or that of the payments if they agree on one; otherwise None."""
    if body.get("sourceCurrency"):
        return str(body["sourceCurrency"])
    named = {payment.get("sourceCurrency") for payment in body.get("payments") or []} - {None}
    return str(named.pop()) if len(named) == 1 else None


def validate_currency(
    body: Mapping[str, JSON], problems: Sequence[Problem] = ()
) -> Iterator[Problem]:
    if any(problem.field == "sourceCurrency" for problem in problems):
        return  # an invalid currency is reported already; comparing with it would add noise
    first = body.get("sourceCurrency")
    for number, payment in enumerate(body.get("payments") or []):
        if own := payment.get("sourceCurrency"):
            first = first or own
            if own != first:
                place = f"payments[{number}].sourceCurrency"
                yield invalid(place, "differs from the batch's currency")
    if not first:
        yield empty("sourceCurrency")


# Recipients


def validate_added_payment(sent: Sent, currency: JSON) -> Iterator[Problem]:
    """Validate a payment to add to an existing batch, whose currency it must have."""
    yield from validate_payment(sent)
    own = sent.body.get("sourceCurrency")
    if own and currency and own != currency:
        yield invalid(f"{sent.place}sourceCurrency", "differs from the batch's currency")


def resolve_recipients(payments: Sequence[Sent], batch_currency: JSON) -> Sub:
    """GET /recipients?email=, once for each distinct address, in parallel.

    Returns the recipient of each payment, with at least its id. Raises Invalid for an address of no
    recipient or of several, and for a recipient who cannot be paid.
    """
    recipients = map_rows(lambda sent: sent.recipient, payments)
    addresses = dict.fromkeys(one["email"] for one in recipients if not one.get("id"))
    rows = yield from _looked_up(list(addresses))
    named = (id_ for one in recipients if (id_ := one.get("id")))
    looked_up = (row["id"] for those in rows.values() for row in those)
    remembered = yield from load_facts_of_recipients(chain(named, looked_up))
    # Malformed values hide state problems: they have to be corrected in any case.
    values, states = ProblemList(), ProblemList()
    # Without looked-up rows or stored facts there is nothing to check a recipient against.
    for sent in payments if rows or remembered else ():
        recipient, fault = _recipient(sent, rows)
        facts = remembered.get(recipient.get("id", ""), {})
        if fault := fault or _not_payable(sent, recipient, facts, batch_currency):
            (states if fault.code == "invalid_status" else values).add(fault)
    if problems := values or states:
        raise Invalid(*problems, more=problems.more)
    return map_rows(lambda sent: _recipient(sent, rows)[0], payments)


TOGETHER = 5000
"""How many recipients' facts one query loads."""


def load_facts_of_recipients(recipients: Iterable[str]) -> Sub:
    """Load the stored facts of any number of recipients, by id."""
    found: dict[str, Facts] = {}
    for some in iterate_chunks(recipients, TOGETHER):
        found |= yield recall_recipient_facts(some)
    return found


def recall_recipient_facts(recipients: Iterable[str]) -> Recall:
    """Build the step that loads the stored facts of recipients, by id."""
    return Recall("recipient", ids=tuple(dict.fromkeys(recipients)))


def _looked_up(addresses: list[str]) -> Sub:
    """Return the recipients with each address, without archived and deleted ones.

    Reading stops at the second match, which makes an address ambiguous.
    """
    calls = [_by_address(address) for address in addresses]
    answers = (yield Parallel(calls)) if calls else []
    found: dict[str, list[dict[str, JSON]]] = {}
    further = 0
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, Exception):
            raise answer
        rows = yield from _with_address(answer, address)
        for page in range(2, paging.parse_count((answer.get("meta") or {}).get("pages"), 1) + 1):
            if len(rows) > 1 or not answer.get("recipients"):
                break
            # A service that ignores the filter would otherwise be read to the end for each address.
            if (further := further + 1) > MOST_ADDRESSES:
                raise Unreachable("too many pages of recipients for an address")
            answer = yield _by_address(address, page)  # noqa: PLW2901
            rows += yield from _with_address(answer, address)
        found[address] = rows
    return found


def _by_address(address: str, page: int = 1) -> Call:
    paged = {"page": str(page)} if page > 1 else {}
    return Call("GET", "/recipients", query={"email": address, **paged}, keeps=CACHE_SECONDS)


def _with_address(answer: JSON, address: str) -> Sub:
    """Keep the rows that have exactly this address, ignoring case, and are not deleted."""
    # The document calls the service's filter exact. If a service ignores it all the same, the
    # wrong recipient must not be paid.
    given = answer.get("recipients") or []
    rows = [row for row in given if str(row.get("email")).casefold() == address.casefold()]
    remembered = (yield recall_recipient_facts(row["id"] for row in rows)) if rows else {}
    return [row for row in rows if not is_gone(row, remembered.get(row["id"], {}))]


def _recipient(
    sent: Sent, rows: Mapping[str, list[dict[str, JSON]]]
) -> tuple[dict[str, JSON], Problem | None]:
    if id_ := sent.recipient.get("id"):
        return {"id": id_}, None
    found = rows[sent.recipient["email"]]
    if len(found) == 1:
        return found[0], None
    what = "is the address of no recipient" if not found else "is the address of several recipients"
    return {}, invalid(f"{sent.place}recipient.email", what)


def _not_payable(
    sent: Sent, recipient: Mapping[str, JSON], facts: Facts, batch_currency: JSON
) -> Problem | None:
    """Return a problem if the recipient cannot be paid, judged by what is known without a call."""
    field = "id" if sent.recipient.get("id") else "email"
    status = (
        derive_legacy_status(recipient, facts) if recipient.get("status") else facts.get("status")
    )
    if facts.get("deleted") or status in ("disabled", "suspended"):
        place = f"{sent.place}recipient.{field}"
        return Problem("invalid_status", f"{place} names a recipient who cannot be paid.", place)
    if (least := money.parse_amount(recipient.get("routeMinimum"))) is None:
        return None
    side = sent.amount_side
    currency = sent.body.get("targetCurrency") if side == "target" else batch_currency
    amount = money.parse_amount(sent.body.get(f"{side}Amount"))
    # An amount in another currency cannot be compared without a rate: the service decides.
    if amount is None or currency != recipient.get("primaryCurrency"):
        return None
    if amount < least:
        return invalid(f"{sent.place}{side}Amount", f"is less than the least amount, {least}")
    return None


SIGNED_ADDS = "signed adds"
"""The kind of the payments that clients have added to a batch by signed requests, each by a name of its own."""


def is_as_asked(batch: Batch) -> Sub:
    """Whether the service's batch makes the requested payments: recipient, amount and currency.

    Payments that clients have added by signed requests may be there besides.
    """
    # Counted, because a client may request equal payments, and the service may reorder them.
    asked = Counter(_asked(entry, batch.facts.get("currency")) for entry in batch.entries)
    others: list[Payment] = []
    for payment in batch.payments:
        side = payment.get("asked_side") or "source"
        amount = money.parse_amount(payment.get(f"{side}Amount"))
        recipient = (payment.get("recipient") or {}).get("id")
        paid = recipient, amount, payment.get(f"{side}Currency")
        if asked[paid]:
            asked[paid] -= 1
        else:
            others.append(payment)
    if asked.total():
        return False
    added = list((yield Recall(SIGNED_ADDS, batch.id)).values()) if others else []
    for payment in others:
        its = (one for one in added if settling.is_paid_by(payment, one, batch.currency))
        if (match := next(its, None)) is None:
            return False
        added.remove(match)
    return True


def _asked(entry: Entry, currency: JSON) -> tuple[JSON, ...]:
    payee = recipient_id(entry)
    if entry.get("sourceAmount"):
        return payee, money.parse_amount(entry["sourceAmount"]), currency
    return payee, money.parse_amount(entry.get("targetAmount")), entry.get("targetCurrency")


KEPT_OF_A_RECIPIENT = ("id", "referenceId", "email", "name", "status", "country", "payoutMethod")


def build_entry(sent: Sent, recipient: Mapping[str, JSON], *, id_: str | None = None) -> Entry:
    """Build the stored form of a payment to add."""
    entry: Entry = {} if id_ is None else {"id": id_}
    entry["recipient"] = extract_listed_recipient(recipient)
    return _with_those(entry, (*AMOUNTS, "memo"), sent.body)


def extract_listed_recipient(recipient: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the fields of a recipient that batch listings show."""
    # Most payments name their recipient by id alone. There may be a hundred thousand of them.
    if len(recipient) == 1 and (id_ := recipient.get("id")) is not None:
        return {"id": id_}
    kept = _with_those({}, KEPT_OF_A_RECIPIENT, recipient)
    if not kept.get("country") and (country := (recipient.get("address") or {}).get("country")):
        kept["country"] = country
    return kept


def _with_those(
    kept: dict[str, JSON], names: Iterable[str], given: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Add the named fields of ``source`` that are not null to ``target``, and return it."""
    for name in names:
        if (value := given.get(name)) is not None:
            kept[name] = value
    return kept


AMOUNTS = ("sourceAmount", "targetAmount", "targetCurrency")


def extract_amounts(body: Mapping[str, JSON]) -> dict[str, JSON]:
    return _with_those({}, AMOUNTS, body)


def extract_changes(body: Mapping[str, JSON], *, memo: bool = True) -> dict[str, JSON]:
    """Return the fields that a body changes; a memo of None clears it."""
    named = {"memo": body["memo"]} if memo and "memo" in body else {}
    return {**extract_amounts(body), **named}


def apply_changes(entry: Entry, body: Mapping[str, JSON]) -> Entry:
    """Return an entry with a client's changes; a new amount replaces that of the other side too."""
    changed = extract_changes(body)
    kept = dict(entry)
    if changed.keys() & {"sourceAmount", "targetAmount"}:
        for name in (*AMOUNTS, "told"):
            kept.pop(name, None)
    return {name: value for name, value in {**kept, **changed}.items() if value is not None}


# Upstream bodies


def build_payment_body(entry: Entry, currency: JSON, *, memo: bool) -> dict[str, Any]:
    """Build a payment of POST ``/batches`` (current interface, section 4.3).

    If the batch's currency is not known, ``currency`` is omitted, and the service uses the batch's.
    """
    if entry.get("sourceAmount"):
        amount, of = entry["sourceAmount"], currency
    else:
        amount, of = entry["targetAmount"], entry["targetCurrency"]
    sent = {"recipient": {"id": entry["recipient"]["id"]}, "amount": amount}
    if of is not None:
        sent["currency"] = of
    if memo and (text := entry.get("memo")):
        sent["memo"] = text
    return sent


def build_batch_body(
    currency: str, description: JSON, entries: Sequence[Entry], *, memo: bool
) -> dict[str, JSON]:
    """Build the body of POST ``/batches`` (current interface, section 4.3)."""
    described = {} if description is None else {"description": description}
    payments = map_rows(lambda entry: build_payment_body(entry, currency, memo=memo), entries)
    return {"currency": currency, **described, "payments": payments}


def map_payments_fields(payments: Sequence[Sent], prefix: str = "payments[{}].") -> dict[str, str]:
    """Map the field names of a call's payments to those in the client's request."""
    names: dict[str, str] = {}
    for number, sent in enumerate(payments):
        names |= map_payment_fields(sent, prefix.format(number))
    return names


def map_change_fields(sent: Sent, ours: str) -> dict[str, str]:
    """Like ``map_payment_fields``, for a call whose payments have the legacy document's fields."""
    own = {f"{ours}{name}": f"{sent.place}{name}" for name in ("id", "sourceCurrency", *AMOUNTS)}
    return own | map_payment_fields(sent, ours)


def map_payment_fields(sent: Sent, ours: str) -> dict[str, str]:
    """Map the field names of one payment of a call to those in the client's request."""
    side = sent.amount_side
    field = "id" if sent.recipient.get("id") else "email"
    whole = {ours.removesuffix("."): sent.place.removesuffix(".")} if ours else {}
    return whole | {
        f"{ours}recipient": f"{sent.place}recipient.{field}",
        f"{ours}recipient.id": f"{sent.place}recipient.{field}",
        f"{ours}amount": f"{sent.place}{side}Amount",
        f"{ours}currency": f"{sent.place}targetCurrency" if side == "target" else "sourceCurrency",
        f"{ours}memo": f"{sent.place}memo",
    }


class Names(Mapping[str, str]):
    """Maps the field names of a batch and its payments to the client's, computed on demand.

    Stored for a hundred thousand payments, the names would take more memory than the payments.
    ``payment_lists`` are the lists of the call's body by name; ``map_fields`` maps the fields of
    one payment.
    """

    def __init__(
        self,
        own: Mapping[str, str],
        lists: Mapping[str, Sequence[Sent]],
        named: Callable[[Sent, str], dict[str, str]],
    ) -> None:
        self._own = own
        self._lists = lists
        self._named = named

    def __getitem__(self, name: str) -> str:
        if name in self._own:
            return self._own[name]
        # The name comes from the service. ``int`` raises for a number of thousands of digits.
        found = re.match(r"([a-z_]+)\[(0|[1-9][0-9]{0,17})\](?:\.|$)", name)
        those = self._lists.get(found[1], ()) if found else ()
        if found is None or int(found[2]) >= len(those):
            raise KeyError(name)
        return self._named(those[int(found[2])], f"{found[1]}[{found[2]}].")[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        for name, those in self._lists.items():
            for number, sent in enumerate(those):
                yield from self._named(sent, f"{name}[{number}].")

    def __len__(self) -> int:
        each_has = len(self._named(Sent({}, ""), "[0]."))
        return len(self._own) + each_has * sum(map(len, self._lists.values()))
