"""Payments and batches in the payloads that the current document does not show.

It says that a summary holds the batch's status and all payment details; the legacy document shows
such payloads. Whatever of these shapes a service uses is read.
"""

from __future__ import annotations

from mappings.grammar import JSON

_BATCH_KEYS = ("batchSummary", "batch", "summary")


def batch_in(body: JSON) -> dict[str, JSON]:
    """The batch of an answer: under its name, or the answer itself; empty where there is none."""
    for key in _BATCH_KEYS:
        if isinstance(body.get(key), dict):
            found: dict[str, JSON] = body[key]
            return found
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}


def payments_in(body: JSON) -> list[dict[str, JSON]]:
    """The payments of an answer, beside the batch or inside of it, flat or with their ``meta``."""
    for holder in (batch_in(body), body):
        given = holder.get("payments")
        if isinstance(given, dict):
            given = given.get("payments")
        if isinstance(given, list):
            return [payment for payment in given if isinstance(payment, dict)]
    return []


def payment_in(body: JSON) -> dict[str, JSON]:
    """The payment of an answer; empty where there is none."""
    given = body.get("payment")
    if isinstance(given, dict):
        return given
    return {name: value for name, value in body.items() if name not in ("ok", "errors")}
