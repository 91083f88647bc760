"""JSON of objects (section 2): translations of the service's own.

Clients see their own ids and words. Amounts of a summary are exact JSON numbers in the batch's
currency, without trailing zeros: 15.5, not 15.50.
"""

from collections.abc import Iterable
from decimal import Decimal

from gateway.simulator import money, views
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids
from gateway.simulator.legacy.banks import list_branch_id_field_names
from gateway.simulator.state import (
    Account,
    Batch,
    Payment,
    Recipient,
    Tenant,
    format_optional_timestamp,
    format_timestamp,
)

# Section 3. A deleted recipient appears only in earlier payments, where it is inactive.
RECIPIENT_STATUSES = {
    "active": "active",
    "incomplete": "incomplete",
    "suspended": "suspended",
    "archived": "inactive",
}
SHARED_FIELDS = (
    "id", "referenceId", "email", "name", "firstName", "lastName", "type", "status",
    "complianceStatus", "compliance", "language", "dob", "passport", "ssn", "address",
    "primaryCurrency", "createdAt", "updatedAt",
)  # fmt: skip
"""In the order of section 2; those with other values here are replaced."""

SHARED_BANK_FIELDS = (
    "currency", "country", "accountNum", "iban", "swiftBic", "bankAddress", "bankCity",
    "bankPostalCode",
)  # fmt: skip

SERVICE_STATUS_BY_LEGACY_STATUS = {"inactive": "active", "disabled": "suspended"}


def translate_status(recipient: Recipient) -> str:
    service_status = recipient.status
    word = recipient.legacy_status
    # The legacy word counts as long as nobody has changed the status through the current interface.
    if word is not None and SERVICE_STATUS_BY_LEGACY_STATUS[word] == service_status:
        return word
    return RECIPIENT_STATUSES.get(service_status, "incomplete")


def translate_compliance_status(recipient: Recipient) -> str:
    return translate_compliance_word(recipient.compliance_status)


def translate_compliance_word(word: str) -> str:
    # This document has no word for `review`.
    return word if word in ("verified", "blocked") else "pending"


def build_compliance(recipient: Recipient) -> JsonObject:
    return {
        "status": translate_compliance_status(recipient),
        "checkedAt": format_optional_timestamp(recipient.compliance_checked_at),
    }


def build_recipient(request: AcceptedRequest, recipient: Recipient) -> JsonObject:
    words = request.tenant.vocabulary
    service_view = views.build_recipient(request.tenant, recipient)
    return {name: service_view[name] for name in SHARED_FIELDS} | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
        "complianceStatus": translate_compliance_status(recipient),
        "compliance": build_compliance(recipient),
        words.legacy.avatar_url: service_view[words.avatar_url],
        "ssn": government_ids.mask_recipient_ssn(recipient.fields),
        "payout": build_payout(request.tenant, recipient) or {"method": None},
        # Not in the document, but clients read it; the words are those of the list filter.
        "payoutMethod": find_payout_method(request, recipient),
    }


def find_payout_method(request: AcceptedRequest, recipient: Recipient) -> str | None:
    primary_account = recipient.primary_account
    return translate_account_type(request.tenant, primary_account.type if primary_account else None)


def build_reduced_recipient(request: AcceptedRequest, recipient: Recipient) -> JsonObject:
    """Builds the recipient of a batch's list, with both names of the country that clients read."""
    view = views.build_reduced_recipient(recipient) | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
    }
    return view | {"countryCode": view["country"]}


def find_visible_account(recipient: Recipient, account_type: str) -> Account | None:
    """Returns the one account of a type that legacy clients see: the primary or the last one."""
    accounts = [account for account in recipient.accounts if account.type == account_type]
    return next(
        (account for account in accounts if account.is_primary), accounts[-1] if accounts else None
    )


def translate_account_to_legacy_word(tenant: Tenant, account: Account | None) -> str | None:
    """Returns `bank` or the wallet's word; other account types have no legacy word and stay."""
    if account is None:
        return None
    return "bank" if account.type == BANK_TRANSFER else translate_account_type(tenant, account.type)


def translate_account_type(tenant: Tenant, account_type: str | None) -> str | None:
    """Returns the type as filters and payments name it: `bank-transfer` or the wallet's word."""
    words = tenant.vocabulary
    return words.legacy.wallet if account_type == words.wallet else account_type


def find_account_type_label(
    tenant: Tenant, account_type: str | None, *, in_summary: bool = False
) -> str | None:
    words, wallet = tenant.vocabulary.legacy, tenant.vocabulary.wallet
    labels = (words.bank_method_display, words.wallet_method_display)
    if in_summary:
        labels = (words.bank_display_name, words.wallet_display_name)
    configured_labels = {BANK_TRANSFER: labels[0], wallet: labels[1]}
    return {**views.METHOD_LABELS, **configured_labels}.get(str(account_type))


def build_payout(tenant: Tenant, recipient: Recipient) -> JsonObject | None:
    """Builds the payout object, or returns None if the recipient has no account."""
    primary_account = recipient.primary_account
    if primary_account is None:
        return None
    method = translate_account_to_legacy_word(tenant, primary_account)
    return {
        "autoswitch": recipient.autoswitch,
        "holdup": recipient.holdup,
        "primary": {
            "method": method,
            "currency": _build_currency(primary_account.fields["currency"]),
        },
        "method": method,
        "methodDisplay": find_account_type_label(tenant, primary_account.type),
        "accounts": _build_accounts(tenant, recipient),
    }


def _build_currency(code: str) -> JsonObject:
    # Section 2 shows a flat and a nested form: this one serves clients of both.
    currency = {"code": code, "name": money.look_up_currency_name(code)}
    return {**currency, "currency": currency}


def _build_accounts(tenant: Tenant, recipient: Recipient) -> JsonObject:
    bank = find_visible_account(recipient, BANK_TRANSFER)
    wallet = find_visible_account(recipient, tenant.vocabulary.wallet)
    accounts: JsonObject = {}
    if bank is not None:
        accounts["bank"] = _build_bank_account(recipient, bank)
    if wallet is not None:
        accounts[tenant.vocabulary.legacy.wallet] = {"address": wallet.fields["emailAddress"]}
    return accounts


def _build_bank_account(recipient: Recipient, account: Account) -> JsonObject:
    account_view = views.build_account(account)
    country = account_view["country"]
    branch = account_view["branchId"]
    branch_fields = list_branch_id_field_names(country)
    return {name: account_view[name] for name in SHARED_BANK_FIELDS} | {
        # Section 2: the institution code in Canada, elsewhere the name of the bank.
        "institution": account_view["bankId"] if country == "CA" else account_view["bankName"],
        "branch": branch,
        "branchNum": branch if "branchNum" in branch_fields else None,
        "routing": branch if "routing" in branch_fields else None,
        "name": account_view["accountHolderName"],
        "bankProvince": account_view["bankRegionCode"],
        "governmentId": government_ids.mask_recipient_government_id(recipient.fields, country),
    }


PAYMENT_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def build_payment(request: AcceptedRequest, payment: Payment) -> JsonObject:
    return {
        "id": request.build_client_id(payment.id),
        "recipient": build_recipient(request, payment.recipient),
        **_build_fields(request, payment),
    }


def build_listed_payment(request: AcceptedRequest, payment: Payment) -> JsonObject:
    """Builds an entry of a batch's list: with a reduced recipient and three more fields."""
    account_type = payment.terms.account_type
    return {
        "id": request.build_client_id(payment.id),
        "recipient": build_reduced_recipient(request, payment.recipient),
        **_build_fields(request, payment),
        "method": translate_account_type(request.tenant, account_type),
        "methodDisplay": find_account_type_label(request.tenant, account_type),
        "isSupplyPayment": False,
    }


def _build_fields(request: AcceptedRequest, payment: Payment) -> JsonObject:
    view = views.build_payment_fields(payment)
    compliance_status = translate_compliance_word(view["compliance"]["status"])
    return view | {
        # Tests set words of the current interface, which this document lacks.
        "status": view["status"] if view["status"] in PAYMENT_STATUSES else "pending",
        "compliance": view["compliance"] | {"status": compliance_status},
        "batch": view["batch"] | {"id": request.build_client_id(payment.batch.id)},
    }


BATCH_FIELDS = (
    "id", "status", "amount", "totalPayments", "currency", "description", "sentAt", "completedAt",
    "createdAt", "updatedAt",
)  # fmt: skip

# Section 3. A finished batch is complete, regardless of the outcome of its payments.
BATCH_STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED_BATCH_STATUSES = frozenset({"processed", "failed"})


def translate_batch_status(request: AcceptedRequest, batch: Batch) -> str:
    word = str(
        batch.overrides.get("status", views.determine_shown_batch_status(request.tenant, batch))
    )
    if word in BATCH_STATUSES:
        return word
    # An unknown word of the service is a stage of processing for legacy clients.
    return "complete" if word in ENDED_BATCH_STATUSES else "processing"


def build_batch(request: AcceptedRequest, batch: Batch) -> JsonObject:
    view = views.build_batch(request.tenant, batch) | {
        "id": request.build_client_id(batch.id),
        "status": translate_batch_status(request, batch),
    }
    # An override that adds a field is one of the current interface.
    return {name: view[name] for name in BATCH_FIELDS}


def build_summary(request: AcceptedRequest, batch: Batch) -> JsonObject:
    """Builds a summary; it lists bank and wallet always, other methods only if used."""
    tenant, payments = request.tenant, list(batch.payments.values())
    wallet, service_total = tenant.vocabulary.wallet, tenant.vocabulary.legacy.service_total
    used = {payment.terms.account_type for payment in payments}
    account_types = [BANK_TRANSFER, wallet, *(t for t in (CHECK, MOBILE_WALLET) if t in used)]
    return {
        "id": request.build_client_id(batch.id),
        "processed_by": "API",
        "errors": [],
        "serverTime": format_timestamp(tenant.now()),
        "status": translate_batch_status(request, batch),
        "currency": batch.currency,
        "description": batch.description,
        **views.build_timestamps(batch),
        "quoteExpiredAt": format_optional_timestamp(batch.quote_expires_at),
        "methods": {
            str(translate_account_type(tenant, account_type)): _build_payout_method_summary(
                tenant, account_type, payments
            )
            for account_type in account_types
        },
        service_total: _build_totals(
            payment for payment in payments if payment.terms.account_type != wallet
        ),
        "GatewayTotal": _build_totals(
            payment for payment in payments if payment.terms.account_type == wallet
        ),
        "total": _build_totals(payments),
        "merchantBalances": {
            "GatewayTotal": _read_wallet_balance(tenant, batch.currency),
            service_total: _convert_to_json_number(tenant.read_balance(batch.currency)),
        },
        "enoughFunds": tenant.has_balance_for_batch(batch),
    }


def _build_payout_method_summary(
    tenant: Tenant, account_type: str, payments: Iterable[Payment]
) -> JsonObject:
    # A payment to a recipient without a payout method counts as a bank transfer, the default.
    legacy_words, is_wallet = tenant.vocabulary.legacy, account_type == tenant.vocabulary.wallet
    return {
        **_build_totals(
            payment
            for payment in payments
            if (payment.terms.account_type or BANK_TRANSFER) == account_type
        ),
        "accountType": legacy_words.wallet_account_type
        if is_wallet
        else legacy_words.service_account_type,
        "displayName": find_account_type_label(tenant, account_type, in_summary=True),
    }


def _build_totals(payments: Iterable[Payment]) -> JsonObject:
    """Sums up payments; `net` is the total cost for the merchant."""
    payment_list = list(payments)
    value = money.sum_amounts(payment.terms.source_amount for payment in payment_list)
    fees = money.sum_amounts(payment.terms.fee for payment in payment_list)
    return {
        "count": len(payment_list),
        "value": _convert_to_json_number(value),
        "fees": _convert_to_json_number(fees),
        "recipientFees": _convert_to_json_number(money.ZERO),
        "merchantFees": _convert_to_json_number(fees),
        "net": _convert_to_json_number(money.sum_amounts((value, fees))),
    }


def _convert_to_json_number(amount: Decimal) -> int | Decimal:
    # Normalizing turns 100 into 1E+2, so whole numbers become integers.
    normalized = money.round_to_cents(amount).normalize(money.EXACT_CONTEXT)
    return int(normalized) if normalized == normalized.to_integral_value() else normalized


def _read_wallet_balance(tenant: Tenant, currency: str) -> int | Decimal:
    # A wallet in another currency cannot pay for this batch.
    wallet_currency, amount = tenant.wallet_balance or ("", money.ZERO)
    return _convert_to_json_number(amount if wallet_currency == currency else money.ZERO)
