"""Payments and batches in the payloads that the current document does not show.

It says that a summary holds the batch's status and all payment details; the legacy document shows
such payloads. Whatever of these shapes a service uses is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappings.grammar import JSON
from mappings.rows import Rows, filter_rows, has_only_type

_BATCH_KEYS = ("batchSummary", "batch", "summary")


def extract_batch(body: JSON) -> dict[str, JSON]:
    """The batch of an answer: under its name, or the answer itself; empty where there is none."""
    for key in _BATCH_KEYS:
        if isinstance(body.get(key), dict):
            found: dict[str, JSON] = body[key]
            return found
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}


def extract_payments(body: JSON) -> Sequence[dict[str, JSON]]:
    """The payments of an answer; none where it does not tell any."""
    return extract_payments_if_told(body) or []


def extract_payments_if_told(body: JSON) -> Sequence[dict[str, JSON]] | None:
    """The payments of an answer, beside the batch or inside of it, flat or with their ``meta``.

    None where it does not speak of payments at all: that is not to have none.
    """
    for holder in (extract_batch(body), body):
        given = holder.get("payments")
        if isinstance(given, dict):
            given = given.get("payments")
        if isinstance(given, list | Rows):
            if has_only_type(given, dict):
                return given
            return filter_rows(given, lambda payment: isinstance(payment, dict))
    return None


def extract_payment(body: JSON) -> dict[str, JSON]:
    """The payment of an answer; empty where there is none."""
    given = body.get("payment")
    if isinstance(given, dict):
        return given
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}
