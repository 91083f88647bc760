"""Extracts payments and batches from payloads that the current document does not show.

That document says that a summary has the batch's status and all payment details; the legacy
document shows payloads of that kind. Every shape that a service may use for them is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mappings.effects import JSON
from mappings.lazy_sequences import LazySequence, filter_rows, has_only_type

_BATCH_KEYS = ("batchSummary", "batch", "summary")


def extract_batch(body: JSON) -> dict[str, JSON]:
    """Returns the batch of a response: under one of its keys, or else the response itself."""
    for key in _BATCH_KEYS:
        if isinstance(body.get(key), dict):
            batch: dict[str, JSON] = body[key]
            return batch
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}


def extract_payments(body: JSON) -> Sequence[dict[str, JSON]]:
    """Returns the payments of a response; empty if it shows none."""
    return find_payments(body) or []


def find_payments(body: JSON) -> Sequence[dict[str, JSON]] | None:
    """Finds the payments of a response, beside the batch or inside it, as a list or with ``meta``.

    None means that the response has no list of all payments, which is not an empty list.
    """
    for holder in (extract_batch(body), body):
        payments, meta = holder.get("payments"), holder.get("meta")
        if isinstance(payments, dict):
            meta, payments = payments.get("meta"), payments.get("payments")
        if isinstance(payments, list | LazySequence):
            # A payment of another page would seem not to exist, and be made again.
            if _is_page_of_longer_list(meta, len(payments)):
                return None
            if has_only_type(payments, dict):
                return payments
            return filter_rows(payments, lambda payment: isinstance(payment, dict))
    return None


def _is_page_of_longer_list(meta: JSON, length: int) -> bool:
    """Whether ``meta`` says that there are more rows, by their number, else by that of pages."""
    if not isinstance(meta, dict):
        return False
    counts = {
        name: int(text)
        for name in ("records", "pages")
        if re.fullmatch("[0-9]{1,18}", text := str(meta.get(name)))
    }
    return counts["records"] > length if "records" in counts else counts.get("pages", 1) > 1


def extract_payment(body: JSON) -> dict[str, JSON]:
    """Returns the payment of a response: under its key, or else the response itself."""
    payment = body.get("payment")
    if isinstance(payment, dict):
        return payment
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}
