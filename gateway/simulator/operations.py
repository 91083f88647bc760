"""Routes of the current interface."""

from functools import lru_cache

from gateway.simulator import batch_operations as batch
from gateway.simulator import recipient_operations as recipient
from gateway.simulator.accepted_request import Operation
from gateway.simulator.canned_answers import CANNED_ANSWERS, create_canned_operation
from gateway.simulator.errors import OperationNotFound
from gateway.simulator.options import ServiceOptions, Vocabulary
from gateway.simulator.routes import Route, compile_routes, find_route

RECIPIENTS_PATH = "/v1/recipients"
RECIPIENT_PATH = "/v1/recipients/{id}"
ACCOUNTS_PATH = "/v1/recipients/{id}/accounts"
ACCOUNT_PATH = "/v1/recipients/{id}/accounts/{recipientAccountId}"
BATCHES_PATH = "/v1/batches"
BATCH_PATH = "/v1/batches/{id}"
PAYMENTS_PATH = "/v1/batches/{id}/payments"
PAYMENT_PATH = "/v1/batches/{id}/payments/{paymentId}"


# Cached per vocabulary, because tests run services with different words.
@lru_cache
def _list_documented_routes(vocabulary: Vocabulary) -> tuple[Route[Operation], ...]:
    return compile_routes(
        ("POST", RECIPIENTS_PATH, recipient.create_recipient),
        ("GET", RECIPIENTS_PATH, recipient.list_recipients),
        ("DELETE", RECIPIENTS_PATH, recipient.delete_recipients),
        ("GET", RECIPIENT_PATH, recipient.read_recipient),
        ("PATCH", RECIPIENT_PATH, recipient.update_recipient),
        ("DELETE", RECIPIENT_PATH, recipient.delete_recipient),
        ("GET", "/v1/recipients/{id}/logs", recipient.list_activities),
        ("GET", "/v1/recipients/{id}/payments", recipient.list_payments),
        ("POST", ACCOUNTS_PATH, recipient.create_account),
        ("GET", ACCOUNT_PATH, recipient.read_account),
        ("PATCH", ACCOUNT_PATH, recipient.update_account),
        ("DELETE", ACCOUNT_PATH, recipient.delete_account),
        ("POST", BATCHES_PATH, batch.create_batch),
        ("POST", PAYMENTS_PATH, batch.add_payment),
        ("POST", "/v1/batches/{id}/generate-quote", batch.generate_quote),
        ("POST", "/v1/batches/{id}/start-processing", batch.start_processing),
        ("GET", vocabulary.summary_path, batch.get_summary),
        ("GET", "/v1/payments/{id}", batch.read_payment),
        ("GET", vocabulary.balance_path, batch.read_balance),
        *(
            (method, path, create_canned_operation(answer))
            for method, path, answer in CANNED_ANSWERS
        ),
    )


# Operations without a path in the document. Section 1 says that open batches can be edited and
# deleted: the paths are assumed to be those of the legacy interface.
INFERRED_ROUTES = compile_routes(
    ("GET", BATCHES_PATH, batch.list_batches),
    ("DELETE", BATCHES_PATH, batch.delete_batches),
    ("GET", BATCH_PATH, batch.read_batch),
    ("PATCH", BATCH_PATH, batch.update_batch),
    ("DELETE", BATCH_PATH, batch.delete_batch),
    ("GET", PAYMENTS_PATH, batch.list_batch_payments),
    ("PATCH", PAYMENT_PATH, batch.update_payment),
    ("DELETE", PAYMENT_PATH, batch.delete_payment),
)
PAYMENT_LIST_ROUTES = compile_routes(("GET", "/v1/payments", batch.list_payments))


def require_operation(
    method: str, path: str, vocabulary: Vocabulary, options: ServiceOptions
) -> tuple[Operation, tuple[str, ...]]:
    """Returns the operation and the ids in the path.

    Paths are compared as sent: nothing is decoded, and a trailing slash is significant. Raises
    OperationNotFound for an unknown path and for a method that the path does not have.
    """
    if match := find_route(_list_documented_routes(vocabulary), method, path):
        return match
    for table, is_offered in (
        (INFERRED_ROUTES, options.inferred),
        (PAYMENT_LIST_ROUTES, options.lists_payments),
    ):
        if is_offered and (match := find_route(table, method, path)):
            return match
    raise OperationNotFound
