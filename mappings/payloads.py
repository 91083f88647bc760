"""Extracts objects from payloads that the current document does not show, and checks responses.

That document says that a summary has the batch's status and all payment details; the legacy
document shows payloads of that kind. Every shape that a service may use for them is accepted. But a
malformed list is an error, not an empty list, and a create without an id is in doubt.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from mappings import money
from mappings.current import BALANCE_PATH, ID_PATTERN, WALLET, Endpoint
from mappings.effects import JSON
from mappings.lazy_sequences import LazySequence, filter_rows, has_only_type
from mappings.paging import extract_meta, parse_count_or_default, parse_record_count

_BATCH_KEYS = ("batchSummary", "batch", "summary")


def _extract_object(keys: Iterable[str], body: JSON) -> dict[str, JSON]:
    for key in keys:
        if isinstance(found := body.get(key), dict):
            return found
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}


extract_batch = partial(_extract_object, _BATCH_KEYS)
"""Returns the batch of a response: under one of its keys, or else the response itself."""

extract_payment = partial(_extract_object, ("payment",))
"""Returns the payment of a response: under its key, or else the response itself."""


def extract_payments(body: JSON) -> Sequence[dict[str, JSON]]:
    """Returns the payments of a response; empty if it shows none."""
    return find_payments(body) or []


def find_payments(body: JSON, *, allows_page: bool = False) -> Sequence[dict[str, JSON]] | None:
    """Finds the payments of a response, beside the batch or inside it, as a list or with ``meta``.

    None means that the response has no list of all payments, which is not an empty list. With
    ``allows_page`` it may be a page of a longer list.
    """
    for holder in (extract_batch(body), body):
        payments, meta = holder.get("payments"), extract_meta(holder)
        if isinstance(payments, dict):
            meta, payments = extract_meta(payments), payments.get("payments")
        if isinstance(payments, list | LazySequence):
            # A payment of another page would seem not to exist, and be made again.
            if not allows_page and _is_page_of_longer_list(meta, len(payments)):
                return None
            if has_only_type(payments, dict):
                return payments
            return filter_rows(payments, lambda payment: isinstance(payment, dict))
    return None


def find_all_payments(body: JSON) -> Sequence[dict[str, JSON]] | None:
    """Like ``find_payments``, but None also if the batch counts more payments than are shown."""
    payments = find_payments(body)
    is_partial = payments is not None and has_more_payments(extract_batch(body), len(payments))
    return None if is_partial else payments


def has_more_payments(batch: Mapping[str, JSON], known_count: int) -> bool:
    """Whether the service's batch counts more payments than are known."""
    payments = batch.get("payments")
    records = parse_record_count(payments if isinstance(payments, dict) else batch, 0)
    return max(parse_count_or_default(batch.get("totalPayments"), 0), records) > known_count


def _is_page_of_longer_list(meta: Mapping[str, JSON], length: int) -> bool:
    """Whether ``meta`` says that there are more rows, by their number, else by that of pages."""
    records = parse_count_or_default(meta.get("records"), -1)
    return records > length if records >= 0 else parse_count_or_default(meta.get("pages"), 1) > 1


def parse_balances(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """Parses the entries of a balance response: a list, an object by currency, or one entry."""
    # The document shows no payload for this call.
    raw_balances = extract_raw_balances(body)
    if isinstance(raw_balances, dict):
        if money.parse_amount(raw_balances.get("amount")) is not None:
            return [raw_balances]
        # The key of an entry is a currency or the name of the wallet account.
        return [
            entry | {field: entry.get(field) or name}
            for name, entry in raw_balances.items()
            if isinstance(entry, dict) and "amount" in entry
            for field in ["type" if name == WALLET else "currency"]
        ]
    return [entry for entry in raw_balances or [] if isinstance(entry, dict)]


def extract_raw_balances(body: Mapping[str, JSON]) -> JSON:
    """Returns the balances of a response: under one of their keys, or else the response itself."""
    for key in ("balances", "balance"):
        if key in body:
            return body[key]
    return {name: value for name, value in body.items() if name != "ok"}


# Checks

LIST_FIELDS = {
    "/recipients": "recipients",
    "/recipients/{id}/logs": "activities",
    "/recipients/{id}/payments": "payments",
    "/batches": "batches",
}
"""Path to the field that contains the list in its response."""

_RECIPIENT_PATH = "/recipients/{id}"

CHECKED_PATHS = {*LIST_FIELDS, BALANCE_PATH, _RECIPIENT_PATH}


def has_expected_shape(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Whether the response of a checked path has the expected list, balances, recipient or new id.

    Of the other reads, a malformed response does not look empty. A bare ``{"ok": true}`` is
    shown as empty unless its ``meta`` counts records; no outcome rule takes it as proof that
    a write was not executed.
    """
    if endpoint.method == "POST":
        return _has_new_id(endpoint, body)
    # Treating the response to another write as an error would leave its outcome in doubt.
    if endpoint.method != "GET":
        return True
    if endpoint.path == _RECIPIENT_PATH:
        return isinstance(body.get("recipient"), dict)
    if not body.keys() - {"ok", "meta"}:
        return parse_record_count(body, 0) <= 0
    if endpoint.path == BALANCE_PATH:
        balances = extract_raw_balances(body)
        return isinstance(balances, dict | list) and (not balances or bool(parse_balances(body)))
    name = LIST_FIELDS[endpoint.path]
    rows = body.get(name)
    # Some services send null for an empty list.
    is_null = rows is None and name in body
    return is_null or (isinstance(rows, list | LazySequence) and has_only_type(rows, dict))


def _has_new_id(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Whether the response to a create names the new object, which later calls need."""
    created = extract_batch(body) if endpoint.path == "/batches" else body.get("recipient")
    id_ = created.get("id") if isinstance(created, dict) else None
    return isinstance(id_, str) and re.fullmatch(ID_PATTERN, id_) is not None
