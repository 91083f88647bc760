"""Payments in request bodies: validation, stored entries, and the bodies of upstream calls."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from mappings import money
from mappings.effects import JSON
from mappings.failures import Problem, build_empty_field_problem, build_invalid_field_problem
from mappings.field_types import validate_amount
from mappings.ids import LEGACY_ID_PATTERN
from mappings.lazy_sequences import iterate_field, map_rows, materialize_rows
from mappings.matching import Entry
from mappings.objects import SENT_AMOUNT_FIELDS, SENT_FIELDS


class SentPayment(msgspec.Struct, frozen=True):
    """A payment in a request body, and its location there.

    ``container`` is the list that holds it and ``position`` its index; without a position,
    ``container`` is the prefix of its fields.
    """

    body: Mapping[str, JSON]
    container: str
    refused_fields: frozenset[str | None] = frozenset()
    """Full names of the fields that failed validation and were removed from ``body``."""
    position: int = -1

    @property
    def field_prefix(self) -> str:
        return self.container if self.position < 0 else f"{self.container}[{self.position}]."

    @property
    def recipient(self) -> Mapping[str, JSON]:
        return self.body.get("recipient") or {}

    @property
    def recipient_field(self) -> str:
        """The full name of the field that names the recipient: by id, or by address."""
        name = "id" if self.recipient.get("id") else "email"
        return f"{self.field_prefix}recipient.{name}"

    @property
    def amount_side(self) -> str:
        return "source" if self.body.get("sourceAmount") else "target"

    def build_invalid(self, name: str, fault: str) -> Problem:
        return build_invalid_field_problem(f"{self.field_prefix}{name}", fault)

    def build_empty(self, name: str) -> Problem:
        return build_empty_field_problem(f"{self.field_prefix}{name}")

    def is_refused(self, name: str) -> bool:
        return bool(self.refused_fields) and f"{self.field_prefix}{name}" in self.refused_fields


def collect_sent_payments(
    payments: Sequence[Mapping[str, JSON]] | None,
    list_name: str = "payments",
    problems: Sequence[Problem] = (),
) -> Sequence[SentPayment]:
    refused_fields = frozenset(map(attrgetter("field"), problems))
    bodies = payments or []

    def build(body: Mapping[str, JSON], position: int) -> SentPayment:
        return SentPayment(body, list_name, refused_fields, position)

    return map_rows(build, bodies, range(len(bodies)))


# Validation


COMPARED_FIELDS = (*SENT_FIELDS, "asked_side", "asked_amount", "asked_currency")
"""The fields of a payment that ``drop_unchanged_fields`` reads."""


def drop_unchanged_fields(
    change: SentPayment, payment: Mapping[str, JSON] | None, *, is_shown_late: bool
) -> SentPayment:
    """Removes from a change the values that the payment has already.

    Clients read a payment, change one field and send the whole object back. If the service may show
    the payment as it was before another change (``is_shown_late``), a change that is no such object
    keeps its amount.
    """
    if payment is None:
        return change
    body, currency = dict(change.body), change.body.get("targetCurrency")
    shown_currency = payment.get("targetCurrency")
    # As with an amount, the service may not show the one that was last requested.
    last_currencies = {shown_currency, payment.get("asked_currency") or shown_currency}
    is_same_currency = last_currencies == {currency}
    is_whole_object = bool(body.get("sourceAmount") and body.get("targetAmount"))
    drops_amounts = is_whole_object or not is_shown_late
    if drops_amounts and _is_unchanged_amount("source", body, payment):
        del body["sourceAmount"]
    # The same number in another currency is a change.
    is_possible = drops_amounts and (currency is None or is_same_currency)
    if is_possible and _is_unchanged_amount("target", body, payment):
        del body["targetAmount"]
    if not body.get("targetAmount") and is_same_currency:
        body.pop("targetCurrency", None)
    if (body.get("memo") or None) == (payment.get("memo") or None):
        body.pop("memo", None)
    return structs.replace(change, body=body)


def _is_unchanged_amount(side: str, body: Mapping[str, JSON], payment: Mapping[str, JSON]) -> bool:
    """Whether an amount is the one that the service shows, and that was last requested."""
    amount = money.parse_amount(body.get(f"{side}Amount"))
    shown_amounts = [payment.get(f"{side}Amount")]
    # A change that the service does not show yet is set back by the amount that it still shows.
    if payment.get("asked_side") == side:
        shown_amounts.append(payment.get("asked_amount"))
    return amount is not None and all(amount == money.parse_amount(each) for each in shown_amounts)


def validate_with_amounts(
    payment: SentPayment, validate: Callable[[SentPayment], Iterable[Problem]]
) -> Iterator[Problem]:
    """Validates a payment whose amounts the shape of the body does not check.

    A payment that is sent back may have amounts as only the service writes them.
    """
    for name in ("sourceAmount", "targetAmount"):
        text = payment.body.get(name)
        if text is not None and (fault := validate_amount(text)):
            yield payment.build_invalid(name, fault)
            body = {other: value for other, value in payment.body.items() if other != name}
            refused_fields = payment.refused_fields | {f"{payment.field_prefix}{name}"}
            payment = structs.replace(payment, body=body, refused_fields=refused_fields)
    yield from validate(payment)


def validate_amount_combination(payment: SentPayment) -> Iterator[Problem]:
    if payment.body.get("sourceAmount") and payment.body.get("targetAmount"):
        yield payment.build_invalid("targetAmount", "and sourceAmount cannot both be given")
    if payment.body.get("targetAmount") and not payment.body.get("targetCurrency"):
        yield payment.build_empty("targetCurrency")


def find_batch_currency(body: Mapping[str, JSON]) -> JSON:
    """Returns ``sourceCurrency``, or else that of the payments; None if there is none."""
    currencies = iterate_field(body.get("payments") or (), "sourceCurrency")
    return body.get("sourceCurrency") or next(filter(None, currencies), None)


def validate_new_batch(
    body: Mapping[str, JSON], payments: Iterable[SentPayment], problems: Sequence[Problem]
) -> Iterator[Problem]:
    """Validates the currency of a new batch, and its payments, which must agree with it."""
    currency = find_batch_currency(body)
    if "sourceCurrency" in map(attrgetter("field"), problems):
        currency = None  # reported already: comparing with another one would add noise
    elif not currency:
        yield build_empty_field_problem("sourceCurrency")
    for payment in payments:
        yield from validate_added_payment(payment, currency)


def validate_added_payment(payment: SentPayment, currency: JSON) -> list[Problem]:
    """Validates a payment to add to a batch, whose currency it must have if that is known."""
    problems: list[Problem] = []
    body, recipient = payment.body, payment.recipient
    if payment.is_refused("recipient.email"):
        pass  # already reported: the client did name a recipient
    elif id_ := recipient.get("id"):
        if not (id_.startswith("R-") and LEGACY_ID_PATTERN.fullmatch(id_)):
            problems += [payment.build_invalid("recipient.id", "is not the id of a recipient")]
    elif not recipient.get("email"):
        problems += [payment.build_empty("recipient.id")]
    has_amount = body.get("sourceAmount") or body.get("targetAmount")
    if not (has_amount or any(map(payment.is_refused, ("sourceAmount", "targetAmount")))):
        problems += [payment.build_empty("sourceAmount")]
    if body.get("targetAmount"):
        problems += validate_amount_combination(payment)
    payment_currency = body.get("sourceCurrency")
    if payment_currency and currency and payment_currency != currency:
        problems += [payment.build_invalid("sourceCurrency", "differs from the batch's currency")]
    return problems


RECIPIENT_FIELDS = ("id", "referenceId", "email", "name", "status", "country", "payoutMethod")


def build_entry_from_body(
    find_recipient: Callable[[Mapping[str, JSON]], Mapping[str, JSON]],
    body: Mapping[str, JSON],
    *,
    id_: str | None = None,
) -> Entry:
    """Builds the stored form of a payment to add; ``find_recipient`` is of ``resolve_recipients``."""
    entry: Entry = {} if id_ is None else {"id": id_}
    entry["recipient"] = select_listed_recipient_fields(find_recipient(body))
    return _copy_non_null_fields(entry, SENT_FIELDS, body)


def select_listed_recipient_fields(recipient: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the fields of a recipient that batch listings show."""
    # Most payments name their recipient by id alone. There may be a hundred thousand of them.
    if len(recipient) == 1 and (id_ := recipient.get("id")) is not None:
        return {"id": id_}
    fields = _copy_non_null_fields({}, RECIPIENT_FIELDS, recipient)
    # A full recipient has the country in its address, a reduced one beside it.
    if not fields.get("country") and (country := (recipient.get("address") or {}).get("country")):
        fields["country"] = country
    return fields


def _copy_non_null_fields(
    target: dict[str, JSON], names: Iterable[str], source: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Adds the named fields of ``source`` that are not null to ``target``, and returns it."""
    for name in names:
        if (value := source.get(name)) is not None:
            target[name] = value
    return target


def extract_payment_changes(body: Mapping[str, JSON], *, memo: bool = True) -> dict[str, JSON]:
    """Returns the fields that a body changes; a memo of None clears it."""
    memo_change = {"memo": body["memo"]} if memo and "memo" in body else {}
    return {**_copy_non_null_fields({}, SENT_AMOUNT_FIELDS, body), **memo_change}


def apply_payment_changes(entry: Entry, body: Mapping[str, JSON]) -> Entry:
    """Returns an entry with a client's changes; a new amount replaces the other side's too.

    Of ``told`` (see ``drafts``) a new amount leaves what does not depend on it, and the currency
    that the recipient gets for a source amount. The rate, the fees and an amount in another
    currency are null until the next quote, which decides them (earlier, section 4.3).
    """
    changes = extract_payment_changes(body)
    # A target currency belongs to a target amount (legacy interface, section 4.4).
    if not changes.get("targetAmount") and (entry.keys() | changes.keys()) & {"sourceAmount"}:
        changes.pop("targetCurrency", None)
    updated = dict(entry)
    if told := updated.pop("told", None) if changes.keys() & {*SENT_AMOUNT_FIELDS} else None:
        names = ("compliance", "memo", *(["targetCurrency"] if "sourceAmount" in changes else ()))
        updated["told"] = _copy_non_null_fields({}, names, told) or None
    if changes.keys() & {"sourceAmount", "targetAmount"}:
        for name in SENT_AMOUNT_FIELDS:
            updated.pop(name, None)
    return {name: value for name, value in {**updated, **changes}.items() if value is not None}


# Bodies of upstream calls


def build_payment_body(entry: Entry, currency: JSON, *, memo: bool) -> dict[str, Any]:
    """Builds a payment of POST ``/batches`` (current interface, section 4.3).

    If the batch's currency is not known, ``currency`` is omitted, and the service uses the batch's.
    """
    if entry.get("sourceAmount"):
        amount, amount_currency = entry["sourceAmount"], currency
    else:
        amount, amount_currency = entry["targetAmount"], entry["targetCurrency"]
    body = {"recipient": {"id": entry["recipient"]["id"]}, "amount": amount}
    if amount_currency is not None:
        body["currency"] = amount_currency
    # A setting decides this, because the current document lists no memo (contract, section 5).
    if memo and (text := entry.get("memo")):
        body["memo"] = text
    return body


def build_batch_body(
    currency: str, description: JSON, entries: Sequence[Entry], *, memo: bool
) -> dict[str, JSON]:
    """Builds the body of POST ``/batches`` (current interface, section 4.3)."""
    description_field = {"description": description} if description else {}
    build_payment = partial(build_payment_body, currency=currency, memo=memo)
    payments = materialize_rows(map_rows(build_payment, entries))
    return {"currency": currency, **description_field, "payments": payments}


def map_change_field_names_to_client(payment: SentPayment, call_prefix: str) -> dict[str, str]:
    """Like ``map_payment_field_names_to_client``, for a call whose payments have the legacy document's fields."""
    change_fields = {
        f"{call_prefix}{name}": f"{payment.field_prefix}{name}"
        for name in ("id", "sourceCurrency", *SENT_AMOUNT_FIELDS)
    }
    return change_fields | map_payment_field_names_to_client(payment, call_prefix)


def map_payment_field_names_to_client(payment: SentPayment, call_prefix: str) -> dict[str, str]:
    """Maps the field names of one payment of a call to those in the client's request."""
    side = payment.amount_side
    item = {}
    if call_prefix:
        item = {call_prefix.removesuffix("."): payment.field_prefix.removesuffix(".")}
    return item | {
        # The client may have named the recipient by address, and an error must name that field.
        f"{call_prefix}recipient": payment.recipient_field,
        f"{call_prefix}recipient.id": payment.recipient_field,
        f"{call_prefix}amount": f"{payment.field_prefix}{side}Amount",
        f"{call_prefix}currency": f"{payment.field_prefix}targetCurrency"
        if side == "target"
        else "sourceCurrency",
        f"{call_prefix}memo": f"{payment.field_prefix}memo",
    }


BATCH_FIELD_NAMES = {"currency": "sourceCurrency", "description": "description"}


class FieldNames(Mapping[str, str]):
    """Maps the field names of a batch and its payments to the client's, computed on demand.

    Stored for a hundred thousand payments, the names would take more memory than the payments, so
    it iterates over those of the batch and of the first payment of each list only.
    ``payment_lists`` are the lists of the call's body by name; ``map_fields`` maps the fields of
    one payment.
    """

    def __init__(
        self,
        batch_fields: Mapping[str, str],
        payment_lists: Mapping[str, Sequence[SentPayment]],
        map_fields: Callable[[SentPayment, str], dict[str, str]],
    ) -> None:
        self._batch_fields = batch_fields
        self._payment_lists = payment_lists
        self._map_fields = map_fields

    def __getitem__(self, name: str) -> str:
        if name in self._batch_fields:
            return self._batch_fields[name]
        # The name comes from the service. ``int`` raises for a number of thousands of digits.
        match = re.match(r"([a-z_]+)\[(0|[1-9][0-9]{0,17})\](?:\.|$)", name)
        payments = self._payment_lists.get(match[1], ()) if match else ()
        if match is None or int(match[2]) >= len(payments):
            raise KeyError(name)
        return self._map_fields(payments[int(match[2])], f"{match[1]}[{match[2]}].")[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._batch_fields
        for name, payments in self._payment_lists.items():
            for payment in payments[:1]:
                yield from self._map_fields(payment, f"{name}[0].")

    def __len__(self) -> int:
        return sum(1 for _ in self)
