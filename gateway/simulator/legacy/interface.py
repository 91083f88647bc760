"""The legacy interface: its routes, and the operations that the other lacks or answers otherwise.

Sections 4 to 7. Names and currencies of countries are those of CLDR, regions those of ISO 3166-2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from urllib.parse import parse_qsl

import pycountry
from babel import Locale
from babel.numbers import get_currency_name, get_territory_currencies

from gateway.simulator import batches, operations, recipients
from gateway.simulator import views as service_views
from gateway.simulator.countries import COUNTRIES, parse_country_codes
from gateway.simulator.legacy import bodies, lists, views
from gateway.simulator.legacy.bodies import (
    JsonNumber,
    drop_empty_and_stringify_integers,
    parse_object,
    parse_ssn,
)
from gateway.simulator.legacy.payout_bodies import Mode, PayoutParser
from gateway.simulator.operations import DELETED, UPDATED, Routes, compile_routes, require_route
from gateway.simulator.options import LegacyVocabulary
from gateway.simulator.requests import AcceptedRequest, Exchange
from gateway.simulator.state import Recipient, Service, build_legacy_id, copy_recipient
from gateway.simulator.validation import (
    ApiError,
    JsonObject,
    Problem,
    Problems,
    build_not_found_error,
    decode_json_object,
)


@dataclass
class LegacyRequest(AcceptedRequest):
    """Maps ids between the client and the service (section 2, Identifiers).

    If a request uses the service's own id of an object, its response uses it too.
    """

    answer_to_deleted_recipients = DELETED
    build_recipient = views.build_recipient
    build_batch = views.build_batch
    build_payment = views.build_payment
    build_listed_payment = views.build_listed_payment
    parse_batch_currency = bodies.parse_batch_currency
    parse_changed_currency = bodies.parse_changed_currency
    parse_payment = bodies.parse_payment
    parse_payment_change = bodies.parse_payment_change

    service_spellings: set[str] = field(default_factory=set)

    def resolve_id(self, client_id: str) -> str:
        service_id = self.tenant.service_ids_by_legacy_id.get(client_id, client_id)
        # An id that is not in the table is the service's own.
        if service_id == client_id:
            self.service_spellings.add(client_id)
        return service_id

    def build_client_id(self, service_id: str) -> str:
        if service_id in self.service_spellings:
            return service_id
        return build_legacy_id(self.tenant.merchant, service_id)

    def is_readable(self, recipient: Recipient) -> bool:
        return not recipient.is_archived  # Deletion is permanent here.

    def build_activity(self, recipient: Recipient, activity: JsonObject) -> JsonObject:
        # The log has the service's id, which legacy clients do not know.
        client_id = self.build_client_id(recipient.id)
        return activity | {
            name: activity[name].replace(recipient.id, client_id)
            for name in ("url", "request", "response")
        }

    def parse_page(self, _problems: Problems) -> tuple[int, int]:
        # Lists have no status for an invalid number (section 4.1), so the default applies.
        return super().parse_page(Problems())


# Section 4.6 lists all countries but these.
SUPPORTED_COUNTRIES = COUNTRIES - parse_country_codes(
    "AQ AX BV CC CD CI CU CV EH HM IO IQ IR KP LB LR LY MM NR PS SD SO SY UM VE YE ZW"
)


def get_country(request: AcceptedRequest) -> JsonObject:
    """Raises ApiError `not_found` for unknown codes and for countries under sanctions."""
    code = request.path_ids[0].upper()
    if code not in SUPPORTED_COUNTRIES:
        raise build_not_found_error("Country")
    return {"country": _build_country(code)}


@lru_cache
def _build_country(code: str) -> JsonObject:
    # Currencies without an end date rather than today's, so that answers do not depend on the date;
    # of several, the one whose code begins with the country's.
    currencies = [
        currency["currency"]
        for currency in get_territory_currencies(code, include_details=True)
        if currency["tender"] and currency["to"] is None
    ]
    currency = next((each for each in currencies if each.startswith(code)), currencies[0])
    regions = {
        str(subdivision.code).partition("-")[2]: str(subdivision.name).split(" [")[0]
        for subdivision in pycountry.subdivisions
        if subdivision.country_code == code
    }
    return {
        "name": Locale("en").territories[code],
        "code": code,
        "currency": {"code": currency, "name": get_currency_name(currency, locale="en")},
        "regions": dict(sorted(regions.items())),
    }


def create_payout_methods(request: LegacyRequest) -> JsonObject:
    _edit_payout_methods(request, "post")
    return get_payout_methods(request)


def get_payout_methods(request: LegacyRequest) -> JsonObject:
    payout = views.build_payout(request.tenant, request.require_path_recipient())
    if payout is None:
        raise build_not_found_error("Payout method")
    return payout


def update_payout_methods(request: LegacyRequest) -> JsonObject:
    _edit_payout_methods(request, "patch")
    return UPDATED


def _edit_payout_methods(request: LegacyRequest, mode: Mode) -> None:
    recipient, problems = request.require_path_recipient(), Problems()
    draft = copy_recipient(recipient)
    parser = PayoutParser(request.tenant, problems, request.body, draft, mode)
    parser.parse()
    problems.raise_if_any()
    if parser.has_new_ids or parser.has_account_changes:
        recipients.record_account_change(request.tenant, draft)
    vars(recipient).update(vars(draft))


def create_recipient(request: LegacyRequest) -> JsonObject:
    problems = Problems()
    # Null means that a new recipient does not have the field.
    body = {name: value for name, value in request.body.items() if value is not None}
    fields, _ = bodies.parse_recipient(problems, body, {})
    recipient = recipients.build_draft_recipient(request.tenant, fields)
    _parse_payout(request, problems, recipient, "create")
    problems.raise_if_any()
    recipients.insert_recipient(request.tenant, recipient)
    request.logged_recipients.append(recipient)
    return {"recipient": request.build_recipient(recipient)}


def update_recipient(request: LegacyRequest) -> JsonObject:
    recipient, problems, body = request.require_path_recipient(), Problems(), request.body
    draft = copy_recipient(recipient)
    draft.fields, sent_names = bodies.parse_recipient(problems, body, recipient.fields)
    status = bodies.parse_status_change(problems, body, views.translate_status(recipient))
    payout = _parse_payout(request, problems, draft, "patch")
    problems.raise_if_any()
    if body.get("id"):  # A whole object sent back: unchanged fields are not changes.
        view = views.build_recipient(request, recipient)
        sent_names = {
            name for name in sent_names if not _is_unchanged(body, draft.fields, name, view)
        }
    if payout.has_new_ids:
        sent_names.add("governmentIds")
    if status is not None:
        # The service has fewer words; the legacy one is stored beside it.
        draft.fields["status"], legacy_status = bodies.STATUS_CHOICES[status]
    if sent_names or status is not None:
        recipients.apply_recipient_fields(request.tenant, draft, draft.fields, sent_names)
    # After the change, which clears the previous word.
    if status is not None:
        draft.legacy_status = legacy_status
    if payout.has_account_changes:
        recipients.record_account_change(request.tenant, draft)
    vars(recipient).update(vars(draft))
    return UPDATED


def _is_unchanged(
    body: JsonObject, fields: JsonObject, name: str, current_view: JsonObject
) -> bool:
    """Whether a sent field equals the shown one; for an address, only the fields that were sent."""
    value, current_value = body.get(name), current_view.get(name)
    if isinstance(value, dict) and isinstance(current_value, dict):
        return all(part == current_value.get(field) for field, part in value.items())
    # Not `body`: a currency may be sent under another name than it is shown.
    return bool(fields.get(name) == current_value)


def _parse_payout(
    request: LegacyRequest, problems: Problems, recipient: Recipient, mode: Mode
) -> PayoutParser:
    """Parses the payout methods and the SSN of a recipient."""
    payout_body = parse_object(problems, request.body, "payout")
    payout_problems = problems.create_nested_view("payout.")
    ssn_ids = parse_ssn(problems, request.body, recipient.fields)
    parser = PayoutParser(request.tenant, payout_problems, payout_body, recipient, mode)
    parser.parse(ssn_ids)
    return parser


def list_payments_of_recipient(request: LegacyRequest) -> JsonObject:
    newest = request.tenant.list_newest_payments(request.require_path_recipient())
    matches = lists.filter_payments(request, newest)
    return request.build_page("payments", matches, request.build_payment)


def list_payments(request: LegacyRequest) -> JsonObject:
    """Lists the payments of all batches, newest first, as the lists of batches show them."""
    matches = lists.filter_payments(request, request.tenant.list_newest_payments())
    return request.build_page("payments", matches, request.build_listed_payment)


def generate_quote(request: LegacyRequest) -> JsonObject:
    """Generates a quote; the response contains the payments, because they have the rates."""
    batch = request.require_path_batch()
    batches.generate_quote(request.tenant, batch)
    return {"batch": request.build_batch_with_payments(batch)}


def get_summary(request: LegacyRequest) -> JsonObject:
    return {"batchSummary": views.build_summary(request, request.require_path_batch())}


def start_processing(request: LegacyRequest) -> JsonObject:
    try:
        return operations.start_processing(request)
    except ApiError as error:
        # The rules of the current interface report fields that legacy clients did not send.
        payment_ids = list(map(request.build_client_id, request.require_path_batch().payments))
        problems = (_name_payment(problem, payment_ids) for problem in error.problems)
        raise ApiError(*problems) from None


def _name_payment(problem: Problem, payment_ids: list[str]) -> Problem:
    """Names the payment in the message, in place of a field."""
    if problem.field is None:
        return problem
    position = int(problem.field.removeprefix("payments[").partition("]")[0])
    is_amount = problem.code != "invalid_status"
    reason = "is less than the least amount" if is_amount else "recipient cannot be paid"
    return Problem(problem.code, f"Payment {payment_ids[position]}: {reason}")


def list_balances(request: LegacyRequest, *, type_: str | None = None) -> JsonObject:
    """Lists all balances, or those of one type. Raises ApiError `not_found` if there is none."""
    words = request.tenant.vocabulary.legacy
    balances = {
        name: balance
        for name, balance in service_views.build_balances(request.tenant, words).items()
        if type_ in (None, balance["type"])
    }
    if not balances:
        raise build_not_found_error("Account")
    return {"balances": balances}


KEYLESS_OPERATION = get_country
BODYLESS_OPERATIONS = {
    operations.delete_recipient,
    operations.delete_batch,
    generate_quote,
    start_processing,
    operations.delete_payment,
}
"""Writes that ignore the request body."""


# Cached per vocabulary, because tests run services with different words.
@cache
def list_routes(vocabulary: LegacyVocabulary) -> Routes:
    list_service_balances = partial(list_balances, type_=vocabulary.service)
    list_wallet_balances = partial(list_balances, type_=vocabulary.wallet)
    return compile_routes(
        *operations.SHARED_ROUTES,
        *operations.EDIT_ROUTES,
        ("POST", "/recipients", create_recipient),
        ("PATCH", "/recipients/:id", update_recipient),
        ("GET", "/recipients", lists.list_recipients),
        ("GET", "/recipients/:id/payments", list_payments_of_recipient),
        ("POST", "/recipients/:id/payout-methods", create_payout_methods),
        ("GET", "/recipients/:id/payout-methods", get_payout_methods),
        ("PATCH", "/recipients/:id/payout-methods", update_payout_methods),
        ("GET", "/batches", lists.list_batches),
        ("POST", "/batches/:id/generate-quote", generate_quote),
        ("GET", "/batches/:id/summary", get_summary),
        ("POST", "/batches/:id/start-processing", start_processing),
        ("GET", "/batches/:id/payments/:payment", operations.read_payment),
        ("GET", "/profile/balances", list_balances),
        ("GET", f"/profile/balances/{vocabulary.service}", list_service_balances),
        ("GET", f"/profile/balances/{vocabulary.wallet}", list_wallet_balances),
        ("GET", "/geography/countries/:code", get_country),
        # Not in the document, like `/payments/:id`, but clients use it.
        ("GET", "/payments", list_payments),
        suffix="/?",
    )


# Section 7, without codes that no operation here returns.
STATUS_BY_CODE = {
    "invalid_api_key": 403, "not_authorized": 403, "not_found": 404, "invalid_status": 406,
    "invalid_field": 406, "empty_field": 406, "expired_quote": 406,
}  # fmt: skip


class LegacyInterface:
    headers: Mapping[str, str] = {"Access-Control-Allow-Origin": "*"}  # section 5, item 6

    def __init__(self, service: Service) -> None:
        self.service = service

    def accept_request(self, exchange: Exchange) -> LegacyRequest:
        """Finds the route, then checks the API key, which geography and preflights do not need."""
        query = dict(parse_qsl(exchange.target.partition("?")[2], keep_blank_values=True))
        is_keyless = exchange.method == "OPTIONS" or KEYLESS_OPERATION in require_route(
            self._routes, exchange.method, exchange.path
        )
        if is_keyless:  # These operations need no data, so they get a tenant without a merchant.
            return LegacyRequest(self.service.find_or_create_tenant("", ""), query)
        # Credentials without an API key have an empty one, which must not match an empty header.
        api_key = exchange.headers.get("X-API-Key") or None
        pairs = self.service.credentials.values()
        pair = next((pair for pair in pairs if pair.api_key == api_key), None)
        if pair is None:
            raise ApiError(Problem("invalid_api_key", "Invalid API key"))
        tenant = self.service.find_or_create_tenant(pair.merchant, pair.environment)
        return LegacyRequest(tenant, query)

    def handle_operation(self, exchange: Exchange, request: AcceptedRequest) -> JsonObject:
        if exchange.method == "OPTIONS":
            return self._answer_preflight(exchange)
        run_operation, request.path_ids = require_route(
            self._routes, exchange.method, exchange.path
        )
        if exchange.method != "GET" and run_operation not in BODYLESS_OPERATIONS:
            # The Content-Type is not checked: section 5 asks for one, but clients omit it.
            body = decode_json_object(exchange.body, JsonNumber)
            request.body = drop_empty_and_stringify_integers(body)
        return run_operation(request)

    def select_error_status(self, error: ApiError) -> int:
        return STATUS_BY_CODE.get(error.problems[0].code, 500)

    @property
    def _routes(self) -> Routes:
        return list_routes(self.service.vocabulary.legacy)

    def _answer_preflight(self, exchange: Exchange) -> JsonObject:
        path = exchange.path
        methods = [each.method for each in self._routes if each.path_pattern.fullmatch(path)]
        if not methods:
            raise build_not_found_error("Path")
        exchange.response_headers = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": "X-API-Key, Content-Type",
        }
        return {}
