"""Payments as clients send them: what is wrong with them, whom they pay, and what is sent on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from mappings import money, paging, settling
from mappings.banking import empty, invalid
from mappings.batch_views import Batch, drop_nulls
from mappings.grammar import JSON, Call, Invalid, Parallel, Problem, Recall, Unreachable
from mappings.ids import SHAPE
from mappings.kinds import check_amount
from mappings.matching import Entry, Payment, recipient_id
from mappings.objects import Facts, derive_legacy_status, is_gone
from mappings.payouts import Sub
from mappings.rows import iterate_chunks, map_rows

MOST_ADDRESSES = 1000
"""Distinct addresses that the payments of one request may name: each is a call of the service."""

CACHE_SECONDS = 60
"""How old the answer to a look-up by address may be."""


class Sent(NamedTuple):
    """A payment of a body, and the place that its fields stand below.

    That is ``holder``, or of a list of that name the item of this ``number``.
    """

    body: Mapping[str, JSON]
    holder: str
    told: frozenset[str | None] = frozenset()
    """The fields that were refused for what stood in them, and taken out."""
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


# What is wrong


def validate_payment(sent: Sent) -> Sequence[Problem]:
    """Of a payment to add."""
    body, told = sent.body, sent.told
    recipient = body.get("recipient") or {}
    id_ = recipient.get("id")
    found: list[Problem] = []
    if told and f"{sent.place}recipient.email" in told:
        pass
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
    """A change of a payment without what is sent back as it was ``shown``."""
    if shown is None:
        return sent
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
    """A payment without the amounts that are none, and what is wrong with them."""
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
    """Of payments to add that name more recipients by address than are looked up for one request."""
    addresses: set[str] = set()
    for sent in payments:
        if sent.recipient.get("id") or not (address := sent.recipient.get("email")):
            continue
        addresses.add(address)
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
    """``sourceCurrency``, or the payments' own where they agree; None where there is none."""
    if body.get("sourceCurrency"):
        return str(body["sourceCurrency"])
    named = {payment.get("sourceCurrency") for payment in body.get("payments") or []} - {None}
    return str(named.pop()) if len(named) == 1 else None


def validate_currency(
    body: Mapping[str, JSON], problems: Sequence[Problem] = ()
) -> Iterator[Problem]:
    if any(problem.field == "sourceCurrency" for problem in problems):
        return  # with one that is none, nothing agrees or differs
    first = body.get("sourceCurrency")
    for number, payment in enumerate(body.get("payments") or []):
        if own := payment.get("sourceCurrency"):
            first = first or own
            if own != first:
                place = f"payments[{number}].sourceCurrency"
                yield invalid(place, "differs from the batch's currency")
    if not first:
        yield empty("sourceCurrency")


# Whom they pay


def validate_added_payment(sent: Sent, currency: JSON) -> Iterator[Problem]:
    """Of a payment to add to a batch that there is: it takes the batch's currency."""
    yield from validate_payment(sent)
    own = sent.body.get("sourceCurrency")
    if own and currency and own != currency:
        yield invalid(f"{sent.place}sourceCurrency", "differs from the batch's currency")


def resolve_recipients(payments: Sequence[Sent], batch_currency: JSON) -> Sub:
    """GET /recipients?email=, once for each distinct address, side by side.

    Returns for each payment its recipient, as much as is known of it: at least the id. Raises
    Invalid for addresses that nobody or several have, and for recipients who cannot be paid.
    """
    recipients = map_rows(lambda sent: sent.recipient, payments)
    addresses = dict.fromkeys(one["email"] for one in recipients if not one.get("id"))
    rows = yield from _looked_up(list(addresses))
    named = (id_ for one in recipients if (id_ := one.get("id")))
    looked_up = (row["id"] for those in rows.values() for row in those)
    remembered = yield from load_facts_of_recipients(chain(named, looked_up))
    problems: list[Problem] = []
    # Of somebody who is named by the id, and of whom nothing is remembered, no more is known.
    for sent in payments if rows or remembered else ():
        recipient, fault = _recipient(sent, rows)
        facts = remembered.get(recipient.get("id", ""), {})
        fault = fault or _not_payable(sent, recipient, facts, batch_currency)
        problems += [fault] if fault else []
    if problems:
        # What is wrong with a value is told before what is in the wrong state.
        values = [one for one in problems if one.code != "invalid_status"]
        raise Invalid(*(values or problems))
    return map_rows(lambda sent: _recipient(sent, rows)[0], payments)


TOGETHER = 5000
"""How many recipients the ledger is asked for at a time."""


def load_facts_of_recipients(recipients: Iterable[str]) -> Sub:
    """What is remembered of recipients, however many they are."""
    found: dict[str, Facts] = {}
    for some in iterate_chunks(recipients, TOGETHER):
        found |= yield recall_recipient_facts(some)
    return found


def recall_recipient_facts(recipients: Iterable[str]) -> Recall:
    """What is remembered of some recipients."""
    return Recall("recipient", ids=tuple(dict.fromkeys(recipients)))


def _looked_up(addresses: list[str]) -> Sub:
    """By address, the recipients who have it, but for those that are archived or deleted."""
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
    """The document calls the filter exact; case aside, it is checked here all the same."""
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
    """What is known here already; no call is made to find out more."""
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
    if amount is None or currency != recipient.get("primaryCurrency"):
        return None
    if amount < least:
        return invalid(f"{sent.place}{side}Amount", f"is less than the least amount, {least}")
    return None


SIGNED_ADDS = "signed adds"
"""The kind of the payments that clients have added to a batch by signed requests, by a name of each."""


def is_as_asked(batch: Batch) -> Sub:
    """Whether the service's batch pays what was asked for: to whom, how much, in what currency.

    That is what the ledger says, and besides it any payment that was added by a signed request.
    """
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
    """What the ledger keeps of a payment to add."""
    entry: Entry = {} if id_ is None else {"id": id_}
    entry["recipient"] = extract_listed_recipient(recipient)
    return _with_those(entry, (*AMOUNTS, "memo"), sent.body)


def extract_listed_recipient(recipient: Mapping[str, JSON]) -> dict[str, JSON]:
    """What listings show of a recipient."""
    if len(recipient) == 1 and (id_ := recipient.get("id")) is not None:
        return {"id": id_}  # of one who is named by it, no more is known
    kept = _with_those({}, KEPT_OF_A_RECIPIENT, recipient)
    if not kept.get("country") and (country := (recipient.get("address") or {}).get("country")):
        kept["country"] = country
    return kept


def _with_those(
    kept: dict[str, JSON], names: Iterable[str], given: Mapping[str, JSON]
) -> dict[str, JSON]:
    """With the fields of these names, as far as they are given."""
    for name in names:
        if (value := given.get(name)) is not None:
            kept[name] = value
    return kept


AMOUNTS = ("sourceAmount", "targetAmount", "targetCurrency")


def extract_amounts(body: Mapping[str, JSON]) -> dict[str, JSON]:
    return _with_those({}, AMOUNTS, body)


def extract_changes(body: Mapping[str, JSON], *, memo: bool = True) -> dict[str, JSON]:
    """What a body changes; a memo of None is cleared."""
    named = {"memo": body["memo"]} if memo and "memo" in body else {}
    return {**extract_amounts(body), **named}


def apply_changes(entry: Entry, body: Mapping[str, JSON]) -> Entry:
    """An entry with what a client changes; a new amount displaces the other side's."""
    changed = extract_changes(body)
    kept = dict(entry)
    if changed.keys() & {"sourceAmount", "targetAmount"}:
        for name in (*AMOUNTS, "told"):
            kept.pop(name, None)
    return {name: value for name, value in {**kept, **changed}.items() if value is not None}


# What is sent on


def build_payment_body(entry: Entry, currency: JSON, *, memo: bool) -> dict[str, Any]:
    """A payment of POST ``/batches`` (current interface, section 4.3).

    Without ``currency`` where the batch has one and nobody told it: it takes the batch's.
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
    """The body of POST ``/batches`` (current interface, section 4.3)."""
    described = {} if description is None else {"description": description}
    payments = map_rows(lambda entry: build_payment_body(entry, currency, memo=memo), entries)
    return {"currency": currency, **described, "payments": payments}


def map_payments_fields(payments: Sequence[Sent], prefix: str = "payments[{}].") -> dict[str, str]:
    """The names of errors on the payments of a call."""
    names: dict[str, str] = {}
    for number, sent in enumerate(payments):
        names |= map_payment_fields(sent, prefix.format(number))
    return names


def map_change_fields(sent: Sent, ours: str) -> dict[str, str]:
    """The same of a payment to add, change or remove, which is sent on as the legacy document has it."""
    own = {f"{ours}{name}": f"{sent.place}{name}" for name in ("id", "sourceCurrency", *AMOUNTS)}
    return own | map_payment_fields(sent, ours)


def map_payment_fields(sent: Sent, ours: str) -> dict[str, str]:
    """The names of errors on a payment of a call."""
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
    """The names of errors on a batch and its payments, each made when it is asked for.

    Of a hundred thousand payments they would take more room than the payments. ``lists`` are those of
    the call's body, by their names in it; ``named`` gives the names of one payment.
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
