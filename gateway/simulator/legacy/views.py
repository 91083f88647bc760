"""JSON of objects (section 2): translations of the service's own.

Clients see their own ids and words. Amounts of a summary are exact JSON numbers in the batch's
currency, without trailing zeros: 15.5, not 15.50.
"""

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from gateway.simulator import money, views
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.countries import BRANCH_ID_PATTERNS
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Account, Batch, Payment, Recipient, Tenant, format_timestamp
from gateway.simulator.validation import JsonObject, mask_value

# In the order of section 2; those with other values here are replaced.
RECIPIENT_FIELDS = (
    "id", "referenceId", "email", "name", "firstName", "lastName", "type", "status",
    "complianceStatus", "compliance", "language", "dob", "passport", "ssn", "address",
    "primaryCurrency", "createdAt", "updatedAt",
)  # fmt: skip
BANK_FIELDS = (
    "currency", "country", "accountNum", "iban", "swiftBic", "bankAddress", "bankCity",
    "bankPostalCode",
)  # fmt: skip
SUMMARY_FIELDS = (
    "id", "status", "currency", "description", "sentAt", "completedAt", "createdAt", "updatedAt",
    "quoteExpiredAt",
)  # fmt: skip
BATCH_FIELDS = (*SUMMARY_FIELDS[:-1], "amount", "totalPayments")

# Section 3. A deleted recipient appears only in earlier payments, where it is inactive.
RECIPIENT_STATUSES = {"active": "active", "suspended": "suspended", "archived": "inactive"}
PAYMENT_STATUSES = frozenset({"pending", "processed", "failed", "returned"})
# A finished batch is complete, regardless of the outcome of its payments.
BATCH_STATUSES = {
    **{word: word for word in ("open", "pending", "processing", "accepted", "complete")},
    "processed": "complete",
    "failed": "complete",
}


def translate_status(recipient: Recipient) -> str:
    return recipient.legacy_status or RECIPIENT_STATUSES.get(recipient.status, "incomplete")


def _translate_compliance(compliance: JsonObject) -> JsonObject:
    # This document has no word for `review`.
    is_final = compliance["status"] in ("verified", "blocked")
    return compliance if is_final else compliance | {"status": "pending"}


def build_recipient(request: AcceptedRequest, recipient: Recipient) -> JsonObject:
    words = request.tenant.vocabulary
    service_view = views.build_recipient(request.tenant, recipient)
    compliance = _translate_compliance(service_view["compliance"])
    return {name: service_view[name] for name in RECIPIENT_FIELDS} | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
        "complianceStatus": compliance["status"],
        "compliance": compliance,
        words.legacy.avatar_url: service_view[words.avatar_url],
        "ssn": mask_recipient_ssn(recipient.fields),
        "payout": build_payout(request.tenant, recipient) or {"method": None},
        # Not in the document, but clients read it; the words are those of the list filter.
        "payoutMethod": translate_account_type(request.tenant, service_view["payoutMethod"]),
    }


def _build_reduced_recipient(request: AcceptedRequest, recipient: Recipient) -> JsonObject:
    """Builds the recipient of a batch's list, with both names of the country that clients read."""
    view = views.build_reduced_recipient(recipient)
    return view | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
        "countryCode": view["country"],
    }


def find_visible_account(recipient: Recipient, account_type: str) -> Account | None:
    """Returns the one account of a type that legacy clients see: the primary or the last one."""
    accounts = [account for account in recipient.accounts if account.type == account_type]
    accounts.sort(key=lambda account: account.is_primary)
    return accounts[-1] if accounts else None


def find_primary_method(tenant: Tenant, recipient: Recipient) -> str | None:
    """Returns `bank` or the wallet's word; other account types have no legacy word and stay."""
    account = recipient.primary_account
    if account is None:
        return None
    return "bank" if account.type == BANK_TRANSFER else translate_account_type(tenant, account.type)


def translate_account_type(tenant: Tenant, account_type: str | None) -> str | None:
    """Returns the type as filters and payments name it: `bank-transfer` or the wallet's word."""
    words = tenant.vocabulary
    return words.legacy.wallet if account_type == words.wallet else account_type


def _find_label(
    tenant: Tenant, account_type: str | None, *, in_summary: bool = False
) -> str | None:
    words = tenant.vocabulary.legacy
    bank_label, wallet_label = words.bank_method_display, words.wallet_method_display
    if in_summary:
        bank_label, wallet_label = words.bank_display_name, words.wallet_display_name
    labels = {BANK_TRANSFER: bank_label, tenant.vocabulary.wallet: wallet_label}
    return (views.METHOD_LABELS | labels).get(str(account_type))


def build_payout(tenant: Tenant, recipient: Recipient) -> JsonObject | None:
    """Builds the payout object, or returns None if the recipient has no account."""
    primary_account = recipient.primary_account
    if primary_account is None:
        return None
    code = primary_account.fields["currency"]
    currency = {"code": code, "name": money.look_up_currency_name(code)}
    method = find_primary_method(tenant, recipient)
    accounts: JsonObject = {}
    if bank := find_visible_account(recipient, BANK_TRANSFER):
        accounts["bank"] = _build_bank_account(recipient, bank)
    if wallet := find_visible_account(recipient, tenant.vocabulary.wallet):
        accounts[tenant.vocabulary.legacy.wallet] = {"address": wallet.fields["emailAddress"]}
    return {
        "autoswitch": recipient.autoswitch,
        "holdup": recipient.holdup,
        # Section 2 shows a flat and a nested form of the currency: this one serves clients of both.
        "primary": {"method": method, "currency": {**currency, "currency": currency}},
        "method": method,
        "methodDisplay": _find_label(tenant, primary_account.type),
        "accounts": accounts,
    }


def _build_bank_account(recipient: Recipient, account: Account) -> JsonObject:
    account_view = views.build_account(account)
    country, branch = account_view["country"], account_view["branchId"]
    branch_fields = list_branch_id_field_names(country)
    return {name: account_view[name] for name in BANK_FIELDS} | {
        # Section 2: the institution code in Canada, elsewhere the name of the bank.
        "institution": account_view["bankId"] if country == "CA" else account_view["bankName"],
        "branch": branch,
        "branchNum": branch if "branchNum" in branch_fields else None,
        "routing": branch if "routing" in branch_fields else None,
        "name": account_view["accountHolderName"],
        "bankProvince": account_view["bankRegionCode"],
        "governmentId": mask_recipient_government_id(recipient.fields, country),
    }


SSN_COUNTRY = "US"


def mask_recipient_government_id(recipient: JsonObject, country: str | None) -> str | None:
    """Returns the masked id of a country, of the type that payments there need."""
    wanted = (country, select_government_id_type(country))
    for entry in recipient.get("governmentIds", []):
        if (entry.get("country"), entry.get("type")) == wanted:
            return mask_value(str(entry["value"]))
    return None


def mask_recipient_ssn(recipient: JsonObject) -> str | None:
    """Returns the masked SSN, from its own field or from the government ids."""
    return mask_value(recipient.get("ssn")) or mask_recipient_government_id(recipient, SSN_COUNTRY)


def select_government_id_type(country: str | None) -> str:
    return "SSN" if country == SSN_COUNTRY else "other"


def list_branch_id_field_names(country: str) -> tuple[str, ...]:
    """Lists the branch fields: `routing` (US), `branchNum` (Canada), either in other countries."""
    if country not in BRANCH_ID_PATTERNS:
        return ()
    return {"US": ("routing",), "CA": ("branchNum",)}.get(country, ("branchNum", "routing"))


def build_payment(request: AcceptedRequest, payment: Payment) -> JsonObject:
    recipient = build_recipient(request, payment.recipient)
    return _build_payment_fields(request, payment) | {"recipient": recipient}


def build_listed_payment(request: AcceptedRequest, payment: Payment) -> JsonObject:
    """Builds an entry of a batch's list: with a reduced recipient and three more fields."""
    account_type = payment.terms.account_type
    return _build_payment_fields(request, payment) | {
        "recipient": _build_reduced_recipient(request, payment.recipient),
        "method": translate_account_type(request.tenant, account_type),
        "methodDisplay": _find_label(request.tenant, account_type),
        "isSupplyPayment": False,
    }


def _build_payment_fields(request: AcceptedRequest, payment: Payment) -> JsonObject:
    view = views.build_payment_fields(payment)
    return view | {
        "id": request.build_client_id(payment.id),
        # Tests set words of the current interface, which this document lacks.
        "status": view["status"] if view["status"] in PAYMENT_STATUSES else "pending",
        "compliance": _translate_compliance(view["compliance"]),
        "batch": view["batch"] | {"id": request.build_client_id(payment.batch.id)},
    }


def build_batch(request: AcceptedRequest, batch: Batch) -> JsonObject:
    # By name, because an override that adds a field is one of the current interface.
    view = _build_batch_view(request, batch)
    return {name: view[name] for name in BATCH_FIELDS}


def _build_batch_view(request: AcceptedRequest, batch: Batch) -> JsonObject:
    view = views.build_batch(request.tenant, batch)
    # An unknown word of the service is a stage of processing for legacy clients.
    status = BATCH_STATUSES.get(view["status"], "processing")
    return view | {"id": request.build_client_id(batch.id), "status": status}


def build_summary(request: AcceptedRequest, batch: Batch) -> JsonObject:
    """Builds a summary; it lists bank and wallet always, other methods only if used."""
    tenant, wallet = request.tenant, request.tenant.vocabulary.wallet
    words = tenant.vocabulary.legacy
    payments_by_type: dict[str, list[Payment]] = defaultdict(list, {BANK_TRANSFER: [], wallet: []})
    for payment in batch.payments.values():
        # A payment to a recipient without a payout method counts as a bank transfer, the default.
        payments_by_type[payment.terms.account_type or BANK_TRANSFER].append(payment)
    view = _build_batch_view(request, batch)
    # A wallet in another currency cannot pay for this batch.
    wallet_currency, wallet_amount = tenant.wallet_balance or ("", money.ZERO)
    wallet_funds = wallet_amount if wallet_currency == batch.currency else money.ZERO
    return {name: view[name] for name in SUMMARY_FIELDS} | {
        "processed_by": "API",
        "errors": [],
        "serverTime": format_timestamp(tenant.now()),
        "methods": {
            str(translate_account_type(tenant, account_type)): _build_totals(payments)
            | {
                "accountType": (
                    words.wallet_account_type
                    if account_type == wallet
                    else words.service_account_type
                ),
                "displayName": _find_label(tenant, account_type, in_summary=True),
            }
            for account_type, payments in payments_by_type.items()
        },
        words.service_total: _build_totals(
            payment for payment in batch.payments.values() if payment.terms.account_type != wallet
        ),
        "GatewayTotal": _build_totals(payments_by_type[wallet]),
        "total": _build_totals(batch.payments.values()),
        "merchantBalances": {
            "GatewayTotal": _convert_to_json_number(wallet_funds),
            words.service_total: _convert_to_json_number(tenant.read_balance(batch.currency)),
        },
        "enoughFunds": tenant.has_balance_for_batch(batch),
    }


def _build_totals(payments: Iterable[Payment]) -> JsonObject:
    """Sums up payments; `net` is the total cost for the merchant."""
    payment_list = list(payments)
    value = money.sum_amounts(payment.terms.source_amount for payment in payment_list)
    fees = money.sum_amounts(payment.terms.fee for payment in payment_list)
    figures = {
        "value": value,
        "fees": fees,
        "recipientFees": money.ZERO,
        "merchantFees": fees,
        "net": money.sum_amounts((value, fees)),
    }
    return {
        "count": len(payment_list),
        **{name: _convert_to_json_number(figure) for name, figure in figures.items()},
    }


def _convert_to_json_number(amount: Decimal) -> int | Decimal:
    # Normalizing turns 100 into 1E+2, so whole numbers become integers.
    normalized = money.round_to_cents(amount).normalize(money.EXACT_CONTEXT)
    return int(normalized) if normalized == normalized.to_integral_value() else normalized
