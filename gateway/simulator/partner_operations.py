"""Operations of parent merchants and sub-merchants (current interface, section 4.4)."""

from typing import Any

from gateway.simulator import partner_rules
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.errors import ApiError, Problem, Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.merchants import Merchant
from gateway.simulator.options import ServiceCredentials
from gateway.simulator.state import Tenant
from gateway.simulator.values import mask_value

MERCHANT_ID_LENGTH = 12
ACCESS_KEY_LENGTH = 20
SECRET_KEY_LENGTH = 40
SANDBOX_ENVIRONMENT = "sandbox"


def create_submerchant(request: AcceptedRequest) -> JsonObject:
    """Creates a sub-merchant. Its keys work even while incomplete onboarding leaves it pending."""
    parent = _require_parent_merchant(request)
    problems = Problems()
    merchant_body = partner_rules.parse_object(problems, request.body, "merchant")
    onboarding_body = partner_rules.parse_object(problems, request.body, "onboarding")
    problems.raise_if_any()
    merchant_fields = partner_rules.parse_fields(
        problems.create_nested_view("merchant."),
        merchant_body,
        partner_rules.MERCHANT_CHECKS,
        required=True,
    )
    onboarding = partner_rules.parse_fields(
        problems.create_nested_view("onboarding."),
        onboarding_body,
        partner_rules.ONBOARDING_CHECKS,
        required=False,
    )
    problems.raise_if_any()
    merchant = Merchant(
        request.tenant.merchants.allocate_sequential_id(),
        request.tenant.generate_id("M-", MERCHANT_ID_LENGTH),
        parent.environment,
        merchant_fields["name"],
        merchant_fields["currency"],
        parent.merchant_id,
        "approved_by_partner" if partner_rules.is_onboarding_complete(onboarding) else "pending",
        website=merchant_fields["website"],
        is_sandbox=parent.is_sandbox,
        country=merchant_fields["country"],
        onboarding=onboarding,
    )
    return _insert_merchant_and_build_answer(request.tenant, merchant, creates_credentials=True)


def create_sandbox_submerchant(request: AcceptedRequest) -> JsonObject:
    """Creates a sandbox sub-merchant, in the sandbox environment even for a live parent."""
    parent = _require_parent_merchant(request)
    problems = Problems()
    merchant_body = partner_rules.parse_object(problems, request.body, "merchant")
    merchant_fields = partner_rules.parse_fields(
        problems.create_nested_view("merchant."),
        merchant_body,
        partner_rules.MERCHANT_CHECKS,
        required=False,
    )
    flags = partner_rules.parse_fields(
        problems, request.body, {"apikey": partner_rules.find_boolean_problem}, required=False
    )
    problems.raise_if_any()
    merchant = Merchant(
        request.tenant.merchants.allocate_sequential_id(),
        request.tenant.generate_id("M-", MERCHANT_ID_LENGTH),
        SANDBOX_ENVIRONMENT,
        merchant_fields.get("name", parent.name),
        merchant_fields.get("currency", parent.primary_currency),
        parent.merchant_id,
        "approved",
        website=merchant_fields.get("website", ""),
        is_sandbox=True,
        country=merchant_fields.get("country"),
    )
    return _insert_merchant_and_build_answer(
        request.tenant, merchant, creates_credentials=bool(flags.get("apikey"))
    )


def _insert_merchant_and_build_answer(
    tenant: Tenant, merchant: Merchant, *, creates_credentials: bool
) -> JsonObject:
    """Inserts a sub-merchant and builds the answer; only this one shows the keys."""
    tenant.merchants.add_merchant(merchant)
    merchant_view: JsonObject = {"id": merchant.id}
    if creates_credentials:
        credentials = ServiceCredentials(
            tenant.generate_id("", ACCESS_KEY_LENGTH).upper(),
            tenant.generate_id("", SECRET_KEY_LENGTH),
            merchant.merchant_id,
            merchant.environment,
        )
        tenant.merchants.credentials[credentials.access_key] = credentials
        merchant_view |= {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
    return {"merchant": merchant_view}


def delete_sandbox_submerchant(request: AcceptedRequest) -> JsonObject:
    """Deletes a sandbox sub-merchant and its keys. Raises ApiError `invalid_field` with 403."""
    parent = _require_parent_merchant(request)
    merchant_id = str(request.body.get("id", ""))
    for merchant in request.tenant.merchants.by_tenant.values():
        is_own_sandbox = merchant.parent_id == parent.merchant_id and merchant.is_sandbox
        if is_own_sandbox and str(merchant.id) == merchant_id and merchant.status != "deleted":
            merchant.status = "deleted"
            request.tenant.merchants.delete_merchant_credentials(merchant)
            return {}
    # 403 contradicts section 7, but this operation's own description has it.
    raise ApiError(
        Problem("invalid_field", "Is not the id of a sandbox sub-merchant", "id"), http_status=403
    )


def _require_parent_merchant(request: AcceptedRequest) -> Merchant:
    """Returns the calling parent merchant. Raises ApiError `not_authorized` for other callers."""
    caller = request.tenant.merchant_record
    if caller.parent_id is not None or not request.tenant.options.partner:
        raise _build_not_authorized_error()
    return caller


def _build_not_authorized_error() -> ApiError:
    return ApiError(Problem("not_authorized", "The key has no permission for this"))


def update_onboarding(request: AcceptedRequest) -> JsonObject:
    """Updates the onboarding of the calling sub-merchant. Raises ApiError for a parent."""
    merchant = request.tenant.merchant_record
    if merchant.parent_id is None:
        raise _build_not_authorized_error()
    problems = Problems()
    changes = partner_rules.parse_fields(
        problems, request.body, partner_rules.ONBOARDING_CHANGE_CHECKS, required=False
    )
    problems.raise_if_any()
    merchant.onboarding |= changes
    # Nothing else completes the onboarding: the document shows no transitions (section 3).
    if merchant.status == "pending" and partner_rules.is_onboarding_complete(merchant.onboarding):
        merchant.status = "approved_by_partner"
    return {}


def list_funding_accounts(request: AcceptedRequest) -> JsonObject:
    """Lists a funding account for each currency; the memo assigns a transfer to the merchant."""
    merchant = request.tenant.merchant_record
    return {
        "info": [_build_funding_account(merchant, currency) for currency in request.tenant.balances]
    }


def _build_funding_account(merchant: Merchant, currency: str) -> JsonObject:
    return {
        "accountAddress": "1 Funding Street",
        "accountCity": "New York",
        "accountCountryCode": "US",
        "accountCurrency": currency,
        "accountName": "Payout Service Client Funds",
        "accountNum": f"{merchant.id:010d}",
        "accountPostalCode": "10001",
        "accountRegion": "NY",
        "bankAddress": "2 Funding Street",
        "bankCity": "New York",
        "bankCountry": "United States",
        "bankCountryCode": "US",
        "bankName": "Harbour Bank",
        "bankPostalCode": "10001",
        "bankRegion": "NY",
        "institution": "021",
        "referenceMemo": merchant.merchant_id,
        "routingNumber": "021000021",
    }


def save_merchant_bank_account(request: AcceptedRequest) -> JsonObject:
    problems = Problems()
    bank_fields = partner_rules.parse_fields(
        problems, request.body, partner_rules.BANK_ACCOUNT_CHECKS, required=True
    )
    problems.raise_if_any()
    request.tenant.merchant_record.bank_account = bank_fields
    return {"merchantBankAccount": _build_bank_account(bank_fields)}


def _build_bank_account(bank_fields: dict[str, Any]) -> JsonObject:
    # The null fields come from a document that is uploaded elsewhere.
    return {
        "currency": bank_fields["currency"],
        "accountName": bank_fields["accountName"],
        "fileLink": None,
        "completed": False,
        "iban": None,
        "accountNum": mask_value(bank_fields["accountNum"]),
        "swiftBic": None,
        "branchId": bank_fields["branchId"],
        "bankId": bank_fields["bankId"],
        "bankName": "Harbour Bank",
        "bankAddress": None,
        "bankCity": None,
        "bankPostalCode": None,
        "bankRegion": None,
        "country": bank_fields["bankCountry"],
        "enabled": bank_fields["enabled"],
    }


def save_widget_colors(request: AcceptedRequest) -> JsonObject:
    """Sets the widget colors of the calling merchant; colors that are not sent stay."""
    problems = Problems()
    if not request.body.get("colors"):
        problems.add_empty_field("colors")
    color_fields = partner_rules.parse_object(problems, request.body, "colors")
    checks = dict.fromkeys(partner_rules.COLOR_FIELDS, partner_rules.find_color_problem)
    colors = partner_rules.parse_fields(
        problems.create_nested_view("colors."), color_fields, checks, required=False
    )
    problems.raise_if_any()
    request.tenant.merchant_record.colors |= colors
    return {}
