"""Routes of the legacy interface (sections 4.1 to 4.6)."""

from functools import cache

from gateway.simulator.legacy import (
    balances,
    batches,
    geography,
    payments,
    recipients,
)
from gateway.simulator.legacy.legacy_request import Operation
from gateway.simulator.options import LegacyVocabulary
from gateway.simulator.routes import Route, compile_routes

KEYLESS_OPERATION = geography.get_country
BODYLESS_OPERATIONS = {
    recipients.delete_recipient,
    batches.delete_batch,
    batches.generate_quote,
    batches.start_processing,
    payments.delete_payment,
}
"""Writes that ignore the request body."""


# Cached per vocabulary, because tests run services with different words.
@cache
def list_routes(vocabulary: LegacyVocabulary) -> tuple[Route[Operation], ...]:
    return compile_routes(
        ("POST", "/recipients", recipients.create_recipient),
        ("GET", "/recipients/:id", recipients.get_recipient),
        ("PATCH", "/recipients/:id", recipients.update_recipient),
        ("DELETE", "/recipients/:id", recipients.delete_recipient),
        ("DELETE", "/recipients", recipients.delete_recipients),
        ("GET", "/recipients", recipients.list_recipients),
        ("GET", "/recipients/:id/logs", recipients.list_activities),
        ("GET", "/recipients/:id/payments", recipients.list_payments),
        ("POST", "/recipients/:id/payout-methods", recipients.create_payout_methods),
        ("GET", "/recipients/:id/payout-methods", recipients.get_payout_methods),
        ("PATCH", "/recipients/:id/payout-methods", recipients.update_payout_methods),
        ("POST", "/batches", batches.create_batch),
        ("GET", "/batches/:id", batches.get_batch),
        ("PATCH", "/batches/:id", batches.update_batch),
        ("DELETE", "/batches/:id", batches.delete_batch),
        ("DELETE", "/batches", batches.delete_batches),
        ("GET", "/batches", batches.list_batches),
        ("POST", "/batches/:id/generate-quote", batches.generate_quote),
        ("GET", "/batches/:id/summary", batches.get_summary),
        ("POST", "/batches/:id/start-processing", batches.start_processing),
        ("POST", "/batches/:id/payments", payments.create_payment),
        ("GET", "/batches/:id/payments/:payment", payments.get_payment),
        ("PATCH", "/batches/:id/payments/:payment", payments.update_payment),
        ("DELETE", "/batches/:id/payments/:payment", payments.delete_payment),
        ("GET", "/batches/:id/payments", payments.list_batch_payments),
        ("GET", "/profile/balances", balances.list_balances),
        ("GET", f"/profile/balances/{vocabulary.service}", balances.list_currency_balances),
        ("GET", f"/profile/balances/{vocabulary.wallet}", balances.get_wallet_balance),
        ("GET", "/geography/countries/:code", geography.get_country),
        # Not in the document, but clients use them.
        ("GET", "/payments/:id", payments.get_payment_of_any_batch),
        ("GET", "/payments", payments.list_all_payments),
        prefix="/v1",
        suffix="/?",
    )


ROUTES = list_routes(LegacyVocabulary())
"""The routes with the document's own words."""
