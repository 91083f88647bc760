"""The current interface: its routes, and the operations that the other lacks or answers otherwise.

Sections 4, 5 and 7.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qsl

from gateway.simulator import accounts, batches, operations, recipients, validation, views
from gateway.simulator.accounts import BANK_TRANSFER, CHECK
from gateway.simulator.countries import is_country_code
from gateway.simulator.operations import Routes, compile_routes, require_route
from gateway.simulator.options import ServiceCredentials, Vocabulary
from gateway.simulator.recipients import CREATE_CHECKS, UPDATE_CHECKS, merge_recipient_fields
from gateway.simulator.requests import AcceptedRequest, Exchange, Operation
from gateway.simulator.state import Account, Recipient, Service, Tenant
from gateway.simulator.validation import (
    STATUS_BY_CODE,
    ApiError,
    Check,
    JsonObject,
    Problem,
    Problems,
    build_not_found_error,
    decode_json_object,
)

MAX_AGE_SECONDS = 30  # In either direction.


class CurrentInterface:
    headers: Mapping[str, str] = {}
    max_age_seconds = MAX_AGE_SECONDS

    def __init__(self, service: Service) -> None:
        self.service = service

    def accept_request(self, exchange: Exchange) -> AcceptedRequest:
        # The document does not say whether the path or the signature counts first: here the signature.
        credentials = self._authenticate_request(exchange)
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        tenant = self.service.find_or_create_tenant(credentials.merchant, credentials.environment)
        return AcceptedRequest(tenant, query)

    def _authenticate_request(self, exchange: Exchange) -> ServiceCredentials:
        """Returns the credentials that signed the request.

        Raises ApiError `invalid_api_key` for any mistake: the document has no other code for the
        caller, and does not say which one a stale timestamp gets.
        """
        service, headers = self.service, exchange.headers
        timestamp = headers.get(service.vocabulary.timestamp_header, "")
        # Compared as written: the document shows the scheme in one spelling only.
        scheme, _, credential = headers.get("Authorization", "").partition(" ")
        access_key, _, signature = credential.partition(":")
        credentials = service.credentials.get(access_key)
        if scheme == service.vocabulary.scheme and credentials is not None:
            is_query_signed = service.options.signed_target == "path-and-query"
            target = exchange.target if is_query_signed else exchange.path
            head = f"{timestamp}\n{exchange.method.upper()}\n{target}\n"
            # Bytes that are not UTF-8 arrive as lone surrogates: they are signed as sent.
            signed_text = head.encode("utf-8", "surrogateescape") + exchange.body + b"\n"
            expected = hmac.new(credentials.secret_key.encode(), signed_text, hashlib.sha256)
            is_timestamp = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12
            is_fresh = (
                is_timestamp and abs(service.clock() - int(timestamp)) <= self.max_age_seconds
            )
            # As bytes, because compare_digest raises on text that is not ASCII.
            given = signature.encode("utf-8", "surrogateescape")
            if is_fresh and hmac.compare_digest(expected.hexdigest().encode(), given):
                return credentials
        raise ApiError(Problem("invalid_api_key", "Invalid API key"))

    def handle_operation(self, exchange: Exchange, request: AcceptedRequest) -> JsonObject:
        run_operation, request.path_ids = require_route(self.routes, exchange.method, exchange.path)
        # Arguments may also be query parameters (section 4); the body takes precedence.
        if exchange.method != "GET":
            request.body = {**_parse_query_arguments(request.query), **_parse_json_body(exchange)}
        return self.run_operation(exchange, request, run_operation)

    @property
    def routes(self) -> Routes:
        return list_routes(self.service.vocabulary, is_inferred=self.service.options.inferred)

    def run_operation(
        self, _exchange: Exchange, request: AcceptedRequest, operation: Operation
    ) -> JsonObject:
        return operation(request)

    def select_error_status(self, error: ApiError) -> int:
        return STATUS_BY_CODE.get(error.problems[0].code, 400)


def _parse_query_arguments(query: Mapping[str, str]) -> JsonObject:
    """Parses query parameters into the types that the same fields have in a body."""
    arguments: dict[str, Any] = dict(query)
    if "ids" in query:
        arguments["ids"] = query["ids"].split(",")
    if query.get("primary") in ("true", "false"):
        arguments["primary"] = query["primary"] == "true"
    return arguments


def _parse_json_body(exchange: Exchange) -> JsonObject:
    """Parses the request body; an empty one counts as an empty object."""
    if not exchange.body:
        return {}
    # Section 5 requires the header when a body is sent.
    media_type = exchange.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(Problem("invalid_field", "Content-Type must be application/json"))
    return decode_json_object(exchange.body)


def create_recipient(request: AcceptedRequest) -> JsonObject:
    tenant, problems, account_body = request.tenant, Problems(), request.body.get("account")
    fields = merge_recipient_fields(problems, request.body, CREATE_CHECKS, {})
    recipient = recipients.build_draft_recipient(tenant, fields)
    # The document does not name the field of the nested account.
    if isinstance(account_body, dict):
        nested_problems = problems.create_nested_view("account.")
        account = accounts.build_draft_account(tenant, nested_problems, fields, account_body)
        accounts.attach_account(recipient, account)
    elif account_body is not None:
        problems.add_invalid_field("account", "Must be an object")
    problems.raise_if_any()
    recipients.insert_recipient(tenant, recipient)
    # The recipient did not exist when the request came, so the path cannot name it.
    request.logged_recipients.append(recipient)
    return {"recipient": request.build_recipient(recipient)}


def update_recipient(request: AcceptedRequest) -> JsonObject:
    """Changes a recipient's own fields; accounts in the body are ignored."""
    recipient, problems, body = request.require_path_recipient(), Problems(), request.body
    # Section 3 allows setting a status in any state, which also takes a recipient out of the
    # archive. An archived recipient accepts no other change.
    if "status" not in body:
        recipients.check_not_archived(recipient)
    fields = merge_recipient_fields(problems, body, UPDATE_CHECKS, recipient.fields)
    problems.raise_if_any()
    recipients.apply_recipient_fields(request.tenant, recipient, fields, body.keys())
    return {"recipient": request.build_recipient(recipient)}


Filter = tuple[Check, Callable[[str, Recipient], bool]]
"""A check of a query parameter, and the test of a recipient by its value."""

DATE_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)?\Z"
)

SORT_KEYS: dict[str, Callable[[Recipient], Any]] = {
    "name": lambda each: _fold_case(each.fields["name"]),
    "email": lambda each: _fold_case(each.fields["email"]),
    "referenceId": lambda each: _fold_case(each.fields.get("referenceId")),
    "payoutMethod": lambda each: each.primary_account.type if each.primary_account else "",
    "createdAt": lambda each: each.created_at,
    "updatedAt": lambda each: each.updated_at,
}


def list_recipients(request: AcceptedRequest) -> JsonObject:
    """Lists recipients; empty and unknown parameters are ignored. Raises ApiError.

    The document does not show the order without `orderBy`: here the last updated come first. Ties
    are sorted by id.
    """
    tenant, query, problems = request.tenant, request.query, Problems()
    request.parse_page(problems)  # its problems are reported with those of the filters
    given = {name: value for name, value in query.items() if value}
    tests: list[Callable[[Recipient], bool]] = []
    for name, (find_problem, matches) in _build_filters_by_parameter(tenant).items():
        if name in given:
            problems.check(name, given[name], find_problem)
            tests.append(partial(matches, given[name]))
    # Section 4.1: the currency is required with this filter.
    if given.get("payoutMethod") == BANK_TRANSFER and "currency" not in given:
        problems.add_empty_field("currency")
    problems.raise_if_any()
    is_archived_requested = tenant.options.filters_archived and query.get("status") == "archived"
    if not (tenant.options.lists_archived or is_archived_requested):
        tests.append(lambda recipient: not recipient.is_archived)
    matching = [each for each in tenant.recipients.values() if all(test(each) for test in tests)]
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matching.sort(key=lambda recipient: recipient.id)
    sort_key = SORT_KEYS[given.get("orderBy", "updatedAt")]
    matching.sort(key=sort_key, reverse=given.get("sortBy") != "asc")
    return request.build_page("recipients", matching, partial(views.build_recipient, tenant))


def _build_filters_by_parameter(tenant: Tenant) -> dict[str, Filter]:
    text, date = validation.find_text_problem, _find_utc_date_problem
    methods = validation.create_choice_check(tenant.vocabulary.wallet, BANK_TRANSFER, CHECK)
    statuses = validation.create_choice_check("active", "incomplete", "suspended", "archived")
    # `review` is a compliance status, but the document does not list it for the filter.
    compliance = validation.create_choice_check("pending", "verified", "blocked")
    return {
        "search": (text, _matches_search),
        "name": (text, _matches_name),
        "email": (text, lambda value, each: each.fields["email"] == value),
        "referenceId": (text, lambda value, each: each.fields.get("referenceId") == value),
        "startDate": (date, lambda value, each: each.updated_at >= _parse_timestamp(value)),
        "endDate": (date, lambda value, each: each.updated_at <= _parse_timestamp(value)),
        "status": (statuses, lambda value, each: each.status == value),
        "complianceStatus": (compliance, lambda value, each: each.compliance_status == value),
        "country": (
            _find_countries_problem,
            lambda value, each: each.address.get("country") in value.split(","),
        ),
        "payoutMethod": (methods, lambda value, each: SORT_KEYS["payoutMethod"](each) == value),
        "currency": (validation.find_currency_problem, _matches_currency),
        "orderBy": (validation.create_choice_check(*SORT_KEYS), lambda *_: True),
        "sortBy": (validation.create_choice_check("asc", "desc"), lambda *_: True),
    }


def _fold_case(value: object) -> str:
    return str(value or "").casefold()


def _matches_search(value: str, recipient: Recipient) -> bool:
    # Section 4.1: by prefix, of the user part and of the domain part.
    texts = [_fold_case(recipient.fields.get(name)) for name in ("name", "email", "referenceId")]
    texts.append(texts[1].rpartition("@")[2])
    return any(text.startswith(value.casefold()) for text in texts)


def _matches_name(value: str, recipient: Recipient) -> bool:
    names = map(recipient.fields.get, ("name", "firstName", "lastName"))
    return any(_fold_case(name).startswith(value.casefold()) for name in names)


def _matches_currency(value: str, recipient: Recipient) -> bool:
    # Section 4.1 filters by "currency of the bank account": of the account that gets payments.
    account = recipient.primary_account
    is_bank_account = account is not None and account.type == BANK_TRANSFER
    return bool(account and is_bank_account and account.fields["currency"] == value)


def _find_countries_problem(value: str) -> str | None:
    if all(is_country_code(code) for code in value.split(",")):
        return None
    return "Must be ISO 3166-1 alpha-2 codes, separated by commas"


def _find_utc_date_problem(value: str) -> str | None:
    try:
        if DATE_PATTERN.match(value) and _parse_timestamp(value):
            return None
    except ValueError:
        pass
    return "Must be an ISO 8601 date in UTC"


def _parse_timestamp(value: str) -> datetime:
    """Parses a UTC date; without a time it is midnight."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def list_payments_of_recipient(request: AcceptedRequest) -> JsonObject:
    payments = request.tenant.list_newest_payments(request.require_path_recipient())
    return request.build_page("payments", payments, request.build_payment)


def create_account(request: AcceptedRequest) -> JsonObject:
    recipient, problems = request.require_path_recipient(), Problems()
    recipients.check_not_archived(recipient)
    account = accounts.build_draft_account(request.tenant, problems, recipient.fields, request.body)
    problems.raise_if_any()
    accounts.attach_account(recipient, account)
    recipients.record_account_change(request.tenant, recipient)
    return {"account": views.build_account(account)}


def read_account(request: AcceptedRequest) -> JsonObject:
    return {"account": views.build_account(require_account(request)[1])}


def update_account(request: AcceptedRequest) -> JsonObject:
    recipient, account = require_account(request)
    recipients.check_not_archived(recipient)
    tenant, problems, body = request.tenant, Problems(), request.body
    if "type" in body and body["type"] != account.type:
        problems.add_invalid_field("type", "Cannot be changed")
    if account.is_primary and body.get("primary") is False:
        # Rule 2: exactly one account is primary, so a client must choose the next one.
        problems.add_invalid_field("primary", "Make another account primary")
    fields = accounts.merge_and_check_account_fields(
        tenant, problems, recipient.fields, account, body
    )
    problems.raise_if_any()
    account.fields = fields
    accounts.renew_account(tenant, recipient, account, make_primary=bool(body.get("primary")))
    recipients.record_account_change(request.tenant, recipient)
    return {"account": views.build_account(account)}


def delete_account(request: AcceptedRequest) -> JsonObject:
    recipient, account = require_account(request)
    recipients.check_not_archived(recipient)
    accounts.remove_account(recipient, account)
    recipients.record_account_change(request.tenant, recipient)
    return {"object": "deleted"}


def require_account(request: AcceptedRequest) -> tuple[Recipient, Account]:
    """Raises ApiError `not_found`, also for an id that an update has replaced."""
    recipient = request.require_path_recipient()
    for account in recipient.accounts:
        if account.id == request.path_ids[1]:
            return recipient, account
    raise build_not_found_error("Recipient account")


def list_batches(request: AcceptedRequest) -> JsonObject:
    """Lists batches, newest first; `search` matches any part of the id."""
    search = request.query.get("search", "").casefold()
    matches = [batch for batch in request.tenant.batches.values() if search in batch.id.casefold()]
    # Dictionaries keep the order of insertion, which is that of creation.
    return request.build_page("batches", matches[::-1], request.build_batch)


def generate_quote(request: AcceptedRequest) -> JsonObject:
    batch = request.require_path_batch()
    batches.generate_quote(request.tenant, batch)
    return {"batch": request.build_batch(batch)}


def get_summary(request: AcceptedRequest) -> JsonObject:
    batch = request.require_path_batch()
    return {"batchSummary": views.build_summary(request.tenant, batch)}


def read_balance(request: AcceptedRequest) -> JsonObject:
    return {"balances": views.build_balances(request.tenant, request.tenant.vocabulary)}


def answer_alike(answer: JsonObject, _request: AcceptedRequest) -> JsonObject:
    return answer


SUBSCRIPTION = {"action": "created", "model": "recipient", "target": "https://hooks.example.com/"}
NEW_MERCHANT = {"id": 1001, "accessKey": "SUBMERCHANT", "secretKey": "submerchant-secret-key"}
FUNDING_ACCOUNT = {"accountCurrency": "USD", "accountNum": "0000001001", "bankName": "Harbour Bank"}
BANK_ACCOUNT = {"currency": "CAD", "accountNum": "****47", "country": "CA", "enabled": True}
# Sub-merchants, subscriptions and offline payments (sections 2.7, 4.4 and 4.5). No payout needs
# them: nothing is stored or checked, and each has one answer.
CANNED_ANSWERS: tuple[tuple[str, str, JsonObject], ...] = (
    ("GET", "/recipients/:id/offlinePayments", {"offlinePayments": []}),
    ("POST", "/profile/submerchant", {"merchant": NEW_MERCHANT}),
    ("POST", "/onboarding/update", {}),
    ("GET", "/balances/info", {"info": [FUNDING_ACCOUNT]}),
    ("POST", "/profile/sandbox", {"merchant": NEW_MERCHANT}),
    ("DELETE", "/profile/sandbox", {}),
    ("POST", "/direct-debit/bank-account/", {"merchantBankAccount": BANK_ACCOUNT}),
    ("POST", "/iframe/config", {}),
    ("POST", "/subscriptions", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("GET", "/subscriptions", {"subscriptions": [{"id": "1", **SUBSCRIPTION}]}),
    ("GET", "/subscriptions/:id", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("PATCH", "/subscriptions/:id", SUBSCRIPTION),
    ("DELETE", "/subscriptions/:id", {}),
)


# Cached, because tests run services with different words and options.
@lru_cache
def list_routes(vocabulary: Vocabulary, *, is_inferred: bool) -> Routes:
    routes: tuple[tuple[str, str, Operation], ...] = (
        *operations.SHARED_ROUTES,
        ("POST", "/recipients", create_recipient),
        ("GET", "/recipients", list_recipients),
        ("PATCH", "/recipients/:id", update_recipient),
        ("GET", "/recipients/:id/payments", list_payments_of_recipient),
        ("POST", "/recipients/:id/accounts", create_account),
        ("GET", "/recipients/:id/accounts/:account", read_account),
        ("PATCH", "/recipients/:id/accounts/:account", update_account),
        ("DELETE", "/recipients/:id/accounts/:account", delete_account),
        ("POST", "/batches/:id/generate-quote", generate_quote),
        ("POST", "/batches/:id/start-processing", operations.start_processing),
        ("GET", vocabulary.summary_path.removeprefix("/v1").replace("{id}", ":id"), get_summary),
        ("GET", vocabulary.balance_path.removeprefix("/v1"), read_balance),
        *((method, path, partial(answer_alike, answer)) for method, path, answer in CANNED_ANSWERS),
        # Operations without a path in the document. Section 1 says that open batches can be edited
        # and deleted: the paths are assumed to be those of the legacy interface.
        *((("GET", "/batches", list_batches), *operations.EDIT_ROUTES) if is_inferred else ()),
    )
    return compile_routes(*routes)
