"""Routes of the legacy interface (sections 4.1 to 4.6)."""

import re
from dataclasses import dataclass
from functools import cache

from gateway.simulator.legacy import (
    balances,
    batches,
    geography,
    payments,
    payout_methods,
    recipients,
)
from gateway.simulator.legacy.asked import Operation
from gateway.simulator.switches import LegacyWords


@dataclass(frozen=True)
class Found:
    operation: Operation
    ids: tuple[str, ...] = ()
    needs_key: bool = True
    takes_body: bool = False


def _pattern(path: str) -> re.Pattern[str]:
    """Compile a path; a request's path must match as sent, apart from a trailing slash."""
    return re.compile("/v1" + re.sub(r":[a-z]+", "([^/]+)", path) + "/?")


@dataclass(frozen=True)
class Line:
    method: str
    path: re.Pattern[str]
    operation: Operation
    needs_key: bool = True
    takes_body: bool = False


def _read(path: str, operation: Operation, *, needs_key: bool = True) -> Line:
    return Line("GET", _pattern(path), operation, needs_key)


def _write(method: str, path: str, operation: Operation) -> Line:
    return Line(method, _pattern(path), operation, takes_body=True)


def _act(method: str, path: str, operation: Operation) -> Line:
    """Build the route of an operation that ignores the request body."""
    return Line(method, _pattern(path), operation)


# Cached per vocabulary, because tests run services with different words.
@cache
def operations(words: LegacyWords) -> tuple[Line, ...]:
    return (
        _write("POST", "/recipients", recipients.create),
        _read("/recipients/:id", recipients.read),
        _write("PATCH", "/recipients/:id", recipients.update),
        _act("DELETE", "/recipients/:id", recipients.delete),
        _write("DELETE", "/recipients", recipients.delete_several),
        _read("/recipients", recipients.list_all),
        _read("/recipients/:id/logs", recipients.list_logs),
        _read("/recipients/:id/payments", recipients.list_payments),
        _write("POST", "/recipients/:id/payout-methods", payout_methods.create),
        _read("/recipients/:id/payout-methods", payout_methods.read),
        _write("PATCH", "/recipients/:id/payout-methods", payout_methods.update),
        _write("POST", "/batches", batches.create),
        _read("/batches/:id", batches.read),
        _write("PATCH", "/batches/:id", batches.update),
        _act("DELETE", "/batches/:id", batches.delete),
        _write("DELETE", "/batches", batches.delete_several),
        _read("/batches", batches.list_all),
        _act("POST", "/batches/:id/generate-quote", batches.generate_quote),
        _read("/batches/:id/summary", batches.read_summary),
        _act("POST", "/batches/:id/start-processing", batches.start_processing),
        _write("POST", "/batches/:id/payments", payments.create),
        _read("/batches/:id/payments/:payment", payments.read),
        _write("PATCH", "/batches/:id/payments/:payment", payments.update),
        _act("DELETE", "/batches/:id/payments/:payment", payments.delete),
        _read("/batches/:id/payments", payments.list_of_batch),
        _read("/profile/balances", balances.read_all),
        _read(f"/profile/balances/{re.escape(words.service)}", balances.read_service),
        _read(f"/profile/balances/{re.escape(words.wallet)}", balances.read_wallet),
        _read("/geography/countries/:code", geography.read_country, needs_key=False),
        # Not in the document, but clients use them.
        _read("/payments/:id", payments.read_any),
        _read("/payments", payments.list_any),
    )


OPERATIONS = operations(LegacyWords())
"""The routes with the document's own words."""


def find(method: str, path: str, words: LegacyWords) -> Found | None:
    for line in operations(words):
        if line.method == method and (match := line.path.fullmatch(path)):
            return Found(line.operation, match.groups(), line.needs_key, line.takes_body)
    return None


def methods_of(path: str, words: LegacyWords) -> list[str]:
    return [line.method for line in operations(words) if line.path.fullmatch(path)]
