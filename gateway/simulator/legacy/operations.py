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
from gateway.simulator.legacy.legacy_request import Operation
from gateway.simulator.options import LegacyVocabulary


@dataclass(frozen=True)
class MatchedRoute:
    operation: Operation
    ids: tuple[str, ...] = ()
    needs_key: bool = True
    takes_body: bool = False


def _compile_path(path: str) -> re.Pattern[str]:
    """Compiles a path; a request's path must match as sent, apart from a trailing slash."""
    return re.compile("/v1" + re.sub(r":[a-z]+", "([^/]+)", path) + "/?")


@dataclass(frozen=True)
class Route:
    method: str
    path_pattern: re.Pattern[str]
    operation: Operation
    needs_key: bool = True
    takes_body: bool = False


def _build_read_route(path: str, operation: Operation, *, needs_key: bool = True) -> Route:
    return Route("GET", _compile_path(path), operation, needs_key)


def _build_write_route(method: str, path: str, operation: Operation) -> Route:
    return Route(method, _compile_path(path), operation, takes_body=True)


def _build_bodyless_route(method: str, path: str, operation: Operation) -> Route:
    """Builds the route of an operation that ignores the request body."""
    return Route(method, _compile_path(path), operation)


# Cached per vocabulary, because tests run services with different words.
@cache
def list_routes(vocabulary: LegacyVocabulary) -> tuple[Route, ...]:
    return (
        _build_write_route("POST", "/recipients", recipients.create_recipient),
        _build_read_route("/recipients/:id", recipients.get_recipient),
        _build_write_route("PATCH", "/recipients/:id", recipients.update_recipient),
        _build_bodyless_route("DELETE", "/recipients/:id", recipients.delete_recipient),
        _build_write_route("DELETE", "/recipients", recipients.delete_recipients),
        _build_read_route("/recipients", recipients.list_recipients),
        _build_read_route("/recipients/:id/logs", recipients.list_activities),
        _build_read_route("/recipients/:id/payments", recipients.list_payments),
        _build_write_route(
            "POST", "/recipients/:id/payout-methods", payout_methods.create_payout_methods
        ),
        _build_read_route("/recipients/:id/payout-methods", payout_methods.get_payout_methods),
        _build_write_route(
            "PATCH", "/recipients/:id/payout-methods", payout_methods.update_payout_methods
        ),
        _build_write_route("POST", "/batches", batches.create_batch),
        _build_read_route("/batches/:id", batches.get_batch),
        _build_write_route("PATCH", "/batches/:id", batches.update_batch),
        _build_bodyless_route("DELETE", "/batches/:id", batches.delete_batch),
        _build_write_route("DELETE", "/batches", batches.delete_batches),
        _build_read_route("/batches", batches.list_batches),
        _build_bodyless_route("POST", "/batches/:id/generate-quote", batches.generate_quote),
        _build_read_route("/batches/:id/summary", batches.get_summary),
        _build_bodyless_route("POST", "/batches/:id/start-processing", batches.start_processing),
        _build_write_route("POST", "/batches/:id/payments", payments.create_payment),
        _build_read_route("/batches/:id/payments/:payment", payments.get_payment),
        _build_write_route("PATCH", "/batches/:id/payments/:payment", payments.update_payment),
        _build_bodyless_route("DELETE", "/batches/:id/payments/:payment", payments.delete_payment),
        _build_read_route("/batches/:id/payments", payments.list_batch_payments),
        _build_read_route("/profile/balances", balances.list_balances),
        _build_read_route(
            f"/profile/balances/{re.escape(vocabulary.service)}", balances.list_currency_balances
        ),
        _build_read_route(
            f"/profile/balances/{re.escape(vocabulary.wallet)}", balances.get_wallet_balance
        ),
        _build_read_route("/geography/countries/:code", geography.get_country, needs_key=False),
        # Not in the document, but clients use them.
        _build_read_route("/payments/:id", payments.get_payment_of_any_batch),
        _build_read_route("/payments", payments.list_all_payments),
    )


ROUTES = list_routes(LegacyVocabulary())
"""The routes with the document's own words."""


def find_route(method: str, path: str, vocabulary: LegacyVocabulary) -> MatchedRoute | None:
    for route in list_routes(vocabulary):
        if route.method == method and (match := route.path_pattern.fullmatch(path)):
            return MatchedRoute(route.operation, match.groups(), route.needs_key, route.takes_body)
    return None


def list_allowed_methods(path: str, vocabulary: LegacyVocabulary) -> list[str]:
    return [route.method for route in list_routes(vocabulary) if route.path_pattern.fullmatch(path)]
