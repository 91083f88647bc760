"""Odd behaviour that a service may have although the document says, or suggests, otherwise.

Each name is a switch (`ServiceOptions.deviations`). Behaviour that the document leaves open has
options of its own.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gateway.simulator import batches
from gateway.simulator.current_interface import MAX_AGE_SECONDS, CurrentInterface, require_account
from gateway.simulator.operations import Routes, compile_routes
from gateway.simulator.requests import AcceptedRequest, Exchange, Operation
from gateway.simulator.validation import ApiError, JsonObject, Problem, build_invalid_status_error
from tests.simulator.service import Deviation, Service, ServiceOptions

LISTED_AS_EMPTY = {"status", "complianceStatus", "startDate", "endDate"}
"""Filters that find nothing with the deviation `list-filters/no-rows`."""
LAG = timedelta(minutes=1)
"""How long a new recipient is missing in lists with the deviation `listed-at-once`."""


def _list_payments(request: AcceptedRequest) -> JsonObject:
    search = request.query.get("search", "")
    matches = [
        payment
        for payment in request.tenant.list_newest_payments()
        if batches.matches_search(payment, search, payment.id)
    ]
    return request.build_page("payments", matches, request.build_payment)


_LIST_OF_PAYMENTS = compile_routes(("GET", "/payments", _list_payments))
"""Not mentioned by the document."""


class DeviatingInterface(CurrentInterface):
    """The current interface with the deviations and the further options of the tests' service."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.options = service.options
        self.max_age_seconds = select_max_age(service.options.deviations)

    @property
    def routes(self) -> Routes:
        list_of_payments = _LIST_OF_PAYMENTS if self.options.lists_payments else ()
        return (*super().routes, *list_of_payments)

    def accept_request(self, exchange: Exchange) -> AcceptedRequest:
        request = super().accept_request(exchange)
        if not self.options.reads_archived:
            request.is_readable = lambda recipient: not recipient.is_archived
        return request

    def run_operation(
        self, exchange: Exchange, request: AcceptedRequest, operation: Operation
    ) -> JsonObject:
        is_new_account = exchange.method == "POST" and exchange.path.endswith("/accounts")
        has_only_iban = request.body.get("iban") and not request.body.get("accountNum")
        is_number_required = self.options.account_number_with_iban == "required"
        if is_new_account and has_only_iban and is_number_required:
            raise ApiError(Problem("empty_field", "Required field is missing", "accountNum"))
        change_request(exchange, request)
        answer = run_operation(exchange, request, operation)
        if self.options.answers == "bare":
            answer = _select_bare_answer(exchange, answer)
        if self.options.balance_shape == "list" and "balances" in answer:
            answer = {"balances": list(answer["balances"].values())}
        if self.options.batch_counts == "text":
            for batch in answer.get("batches", ()):
                batch["totalPayments"] = str(batch["totalPayments"])
        # A copy, because answers without fields of their own are shared.
        return change_answer(request, dict(answer))

    def select_error_status(self, error: ApiError) -> int:
        status = super().select_error_status(error)
        is_validation = error.problems[0].code in ("empty_field", "invalid_field")
        return self.options.validation_status if is_validation else status


def _select_bare_answer(exchange: Exchange, answer: JsonObject) -> JsonObject:
    """Leaves of the answer to a write on batches only the id of a new object."""
    if exchange.method == "GET" or not exchange.path.startswith("/v1/batches"):
        return answer
    # Without the id no client could go on.
    is_create = exchange.method == "POST" and exchange.path.endswith(("/batches", "/payments"))
    return {name: {"id": value["id"]} for name, value in answer.items()} if is_create else {}


def select_max_age(deviations: frozenset[Deviation]) -> float:
    """Selects the age in seconds from which a request is refused."""
    ages = {"request-age": math.inf, "request-age/a-minute": 60}
    return next((age for name, age in ages.items() if name in deviations), MAX_AGE_SECONDS)


def change_request(exchange: Exchange, request: AcceptedRequest) -> None:
    """Changes a request before the service carries it out, or refuses it with ApiError."""
    deviations, path = request.tenant.options.deviations, exchange.path
    if path == "/v1/recipients" and exchange.method == "GET":
        ignored: set[str] = set()
        if "list-filters" in deviations:
            ignored |= request.query.keys() - {"page", "pageSize", "orderBy", "sortBy"}
        has_other_order = request.query.get("orderBy") not in ("name", "email")
        if "list-order" in deviations or ("list-order/fields" in deviations and has_other_order):
            ignored |= {"orderBy", "sortBy"}
        request.query = {
            name: value for name, value in request.query.items() if name not in ignored
        }
    if "edits" in deviations and exchange.method == "PATCH" and path.startswith("/v1/batches/"):
        request.body = {}
    if "documented-paths" in deviations and path.endswith("/logs"):
        raise ApiError(Problem("not_found", "Path does not exist"))
    is_refused_quote = "quotes" in deviations and path.endswith("/generate-quote")
    if is_refused_quote and request.require_path_batch().quote_count:
        raise build_invalid_status_error("Batch has a quote")
    if exchange.method == "POST" and path.endswith(("/batches", "/payments")):
        _change_payment_bodies(request, is_add=path.endswith("/payments"))


def _change_payment_bodies(request: AcceptedRequest, *, is_add: bool) -> None:
    deviations, body = request.tenant.options.deviations, request.body
    if is_add and "added-payments" in deviations:
        raise ApiError(Problem("empty_field", "Required field is missing", "sourceAmount"))
    payments = [body] if is_add else body.get("payments") or []
    if "memo/ignored" in deviations:
        for payment in payments:
            payment.pop("memo", None)
    if "memo" in deviations and any(payment.get("memo") for payment in payments):
        raise ApiError(Problem("invalid_field", "Unknown field", "memo"))
    if "target-amounts" in deviations:
        batch_currency = request.tenant.vocabulary.batch_currency
        currency = request.require_path_batch().currency if is_add else body.get(batch_currency)
        for payment in payments:
            payment["currency"] = currency


def run_operation(exchange: Exchange, request: AcceptedRequest, operation: Operation) -> JsonObject:
    """Carries out a request; undoes it, or shows the first page, if the service only says it did."""
    deviations, page = request.tenant.options.deviations, request.query.get("page")
    path = exchange.path
    if "pages" in deviations and page and exchange.path == "/v1/recipients":
        request.query = {**request.query, "page": "1"}
        answer = operation(request)
        return {**answer, "meta": {**answer["meta"], "page": int(page)}}
    is_batch = re.fullmatch("/v1/batches(/[^/]+)?", exchange.path)
    if exchange.method == "DELETE" and is_batch and "edits/whole-batches" in deviations:
        return {}
    if exchange.method == "PATCH" and "/accounts/" in path and "account-id" in deviations:
        _, account = require_account(request)
        previous_id, answer = account.id, operation(request)
        account.id = answer["account"]["recipientAccountId"] = previous_id
        return answer
    undone = {"POST": "added-payments/ignored", "DELETE": "edits/deletions"}.get(exchange.method)
    if undone not in deviations or "/payments" not in exchange.path:
        return operation(request)
    payments = request.require_path_batch().payments
    before = dict(payments)
    answer = operation(request)
    payments.clear()
    payments.update(before)
    return answer


def change_answer(request: AcceptedRequest, answer: JsonObject) -> JsonObject:
    """Returns the answer that the service gives instead."""
    deviations, now = request.tenant.options.deviations, request.tenant.now()
    if "list-filters/no-rows" in deviations and LISTED_AS_EMPTY & request.query.keys():
        answer |= {"recipients": []}
    if "list-totals/pages" in deviations and "meta" in answer:
        answer["meta"]["pages"] = 1
    recipients: list[JsonObject] = [*answer.get("recipients", ()), answer.get("recipient") or {}]
    _change_recipients(filter(None, recipients), deviations)
    if "listed-at-once" in deviations and "recipients" in answer:
        answer["recipients"] = [
            recipient
            for recipient in answer["recipients"]
            if now - datetime.fromisoformat(recipient["createdAt"]) > LAG
        ]
    if "list-totals" in deviations:
        answer.pop("meta", None)
    if "wallet-account" in deviations and "balances" in answer:
        answer["balances"].pop(request.tenant.vocabulary.wallet, None)
    summary: Any = answer.get("batchSummary") or {}
    if "payment-recipients" in deviations:
        for payment in summary.get("payments", ()):
            del payment["recipient"]["country"]
    if "summary" in deviations:
        summary.pop("payments", None)
    if "payment-fields" in deviations and "payment" in answer:
        del answer["payment"]["sourceAmount"], answer["payment"]["targetAmount"]
    return answer


def _change_recipients(recipients: Iterable[JsonObject], deviations: frozenset[Deviation]) -> None:
    for recipient in recipients:
        if "creation-date" in deviations:
            recipient["createdAt"] = recipient["updatedAt"]
        if "update-date" in deviations:
            recipient["updatedAt"] = recipient["createdAt"]
        if "primary-account" in deviations:
            for account in recipient["accounts"]:
                account["primary"] = True


def change_error(exchange: Exchange, options: ServiceOptions, error: ApiError) -> ApiError:
    """Returns the error that the service answers with instead."""
    code, deviations = error.problems[0].code, options.deviations
    names_recipient = (error.problems[0].field or "").endswith("recipient.id")
    if code == "not_found" and names_recipient and options.unknown_recipient == 400:
        return ApiError(*(replace(problem, code="invalid_field") for problem in error.problems))
    if code == "invalid_api_key" and "refused-signature" in deviations:
        return ApiError(Problem("not_authorized", "Not permitted"))
    is_unknown = "unknown-id" in deviations or (
        "unknown-id/batches" in deviations and exchange.path.startswith("/v1/batch")
    )
    if code == "not_found" and exchange.method == "GET" and is_unknown:
        return ApiError(Problem("invalid_field", "Unknown id", "id"))
    if code in ("empty_field", "invalid_field") and "validation-errors" in deviations:
        return ApiError(Problem("validation_failed", "Request is invalid"))
    return error
