"""Routes of the current interface."""

import re
from functools import lru_cache

from gateway.simulator import batch_operations as batch
from gateway.simulator import partner_operations as partner
from gateway.simulator import recipient_operations as recipient
from gateway.simulator import subscriptions
from gateway.simulator.arrived import Operation
from gateway.simulator.refusals import NoSuchOperation
from gateway.simulator.switches import Switches, Words

RECIPIENTS = "/v1/recipients"
RECIPIENT = "/v1/recipients/{id}"
ACCOUNTS = "/v1/recipients/{id}/accounts"
ACCOUNT = "/v1/recipients/{id}/accounts/{recipientAccountId}"
BATCHES = "/v1/batches"
BATCH = "/v1/batches/{id}"
PAYMENTS = "/v1/batches/{id}/payments"
PAYMENT = "/v1/batches/{id}/payments/{paymentId}"
SANDBOX = "/v1/profile/sandbox"
SUBSCRIPTIONS = "/v1/subscriptions"
SUBSCRIPTION = "/v1/subscriptions/{id}"

Table = tuple[tuple[str, re.Pattern[str], Operation], ...]


def _table(*lines: tuple[str, str, Operation]) -> Table:
    return tuple((method, _pattern(path), operation) for method, path, operation in lines)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{[A-Za-z]+\\\}", "([^/]+)", re.escape(path)))


# Cached per vocabulary, because tests run services with different words.
@lru_cache
def _documented(words: Words) -> Table:
    return _table(
        ("POST", RECIPIENTS, recipient.create_recipient),
        ("GET", RECIPIENTS, recipient.list_recipients),
        ("DELETE", RECIPIENTS, recipient.delete_recipients),
        ("GET", RECIPIENT, recipient.read_recipient),
        ("PATCH", RECIPIENT, recipient.update_recipient),
        ("DELETE", RECIPIENT, recipient.delete_recipient),
        ("GET", "/v1/recipients/{id}/logs", recipient.list_logs),
        ("GET", "/v1/recipients/{id}/payments", recipient.list_payments),
        ("GET", "/v1/recipients/{id}/offlinePayments", recipient.list_offline_payments),
        ("POST", ACCOUNTS, recipient.create_account),
        ("GET", ACCOUNT, recipient.read_account),
        ("PATCH", ACCOUNT, recipient.update_account),
        ("DELETE", ACCOUNT, recipient.delete_account),
        ("POST", BATCHES, batch.create_batch),
        ("POST", PAYMENTS, batch.add_payment),
        ("POST", "/v1/batches/{id}/generate-quote", batch.generate_quote),
        ("POST", "/v1/batches/{id}/start-processing", batch.start_processing),
        ("GET", words.summary_path, batch.read_summary),
        ("GET", "/v1/payments/{id}", batch.read_payment),
        ("GET", words.balance_path, batch.read_balance),
        ("POST", "/v1/profile/submerchant", partner.create_submerchant),
        ("POST", "/v1/onboarding/update", partner.update_onboarding),
        ("GET", "/v1/balances/info", partner.read_funding),
        ("POST", SANDBOX, partner.create_sandbox),
        ("DELETE", SANDBOX, partner.delete_sandbox),
        ("POST", "/v1/direct-debit/bank-account/", partner.write_bank_account),
        ("POST", "/v1/iframe/config", partner.write_widget_colors),
        ("POST", SUBSCRIPTIONS, subscriptions.create),
        ("GET", SUBSCRIPTIONS, subscriptions.list_all),
        ("GET", SUBSCRIPTION, subscriptions.read),
        ("PATCH", SUBSCRIPTION, subscriptions.update),
        ("DELETE", SUBSCRIPTION, subscriptions.delete),
    )


# Operations without a path in the document. Section 1 says that open batches can be edited and
# deleted: the paths are assumed to be those of the earlier interface.
INFERRED = _table(
    ("GET", BATCHES, batch.list_batches),
    ("DELETE", BATCHES, batch.delete_batches),
    ("GET", BATCH, batch.read_batch),
    ("PATCH", BATCH, batch.update_batch),
    ("DELETE", BATCH, batch.delete_batch),
    ("GET", PAYMENTS, batch.list_batch_payments),
    ("PATCH", PAYMENT, batch.update_payment),
    ("DELETE", PAYMENT, batch.delete_payment),
)
PAYMENT_LIST = _table(("GET", "/v1/payments", batch.list_payments))


def find_operation(
    method: str, path: str, words: Words, switches: Switches
) -> tuple[Operation, tuple[str, ...]]:
    """Return the operation and the ids in the path.

    Paths are compared as sent: nothing is decoded, and a trailing slash is significant. Raises
    OperationNotFound for an unknown path and for a method that the path does not have.
    """
    if found := _look(_documented(words), method, path):
        return found
    for table, offered in (
        (INFERRED, switches.inferred),
        (PAYMENT_LIST, switches.lists_payments),
    ):
        if found := _look(table, method, path):
            if offered:
                return found
            raise NoSuchOperation(switches.inferred_status)
    raise NoSuchOperation


def _look(table: Table, method: str, path: str) -> tuple[Operation, tuple[str, ...]] | None:
    for known, pattern, operation in table:
        if known == method and (match := pattern.fullmatch(path)):
            return operation, match.groups()
    return None
