"""Bodies of upstream calls that create or change payments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mappings.batch_bodies import AMOUNT_FIELDS, SentPayment
from mappings.effects import JSON
from mappings.lazy_sequences import map_rows, materialize_rows
from mappings.matching import Entry


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
    payments = materialize_rows(
        map_rows(lambda entry: build_payment_body(entry, currency, memo=memo), entries)
    )
    return {"currency": currency, **description_field, "payments": payments}


def map_change_field_names_to_client(payment: SentPayment, call_prefix: str) -> dict[str, str]:
    """Like ``map_payment_field_names_to_client``, for a call whose payments have the legacy document's fields."""
    change_fields = {
        f"{call_prefix}{name}": f"{payment.field_prefix}{name}"
        for name in ("id", "sourceCurrency", *AMOUNT_FIELDS)
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
