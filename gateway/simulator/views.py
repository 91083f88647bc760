"""JSON of objects (current interface, sections 2.3 to 2.7; legacy interface, section 2).

The document of the current interface does not show batches, payments and balances: they are those
of the legacy interface, with the service's words.
"""

from decimal import Decimal

from gateway.simulator import money
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET, OWN_FIELDS, WALLET_FIELD
from gateway.simulator.countries import SEPA_COUNTRIES, WIRE_COUNTRIES
from gateway.simulator.options import LegacyVocabulary, Vocabulary
from gateway.simulator.recipients import ADDRESS_CHECKS
from gateway.simulator.state import Account, Batch, Payment, Recipient, Tenant, format_timestamp
from gateway.simulator.validation import JsonObject, mask_value

METHOD_LABELS = {BANK_TRANSFER: "Bank Transfer", CHECK: "Check", MOBILE_WALLET: "Mobile Wallet"}

# Routes of bank transfers, and minimum and fee by route: invented, in the document's format.
LOCAL_ROUTES = {"US": "ach", "GB": "fps", "CA": "eft", "AU": "eft", "NZ": "eft"}
ROUTE_MINIMUMS = {"ach": "1", "fps": "1", "eft": "1", "sepa": "2", "transfer": "5", "wire": "30"}
ROUTE_FEES = {"ach": "1.00", "fps": "1.00", "eft": "1.50", "sepa": "1.00", "wire": "15.00"}

# Fields that responses show as requests have set them.
PLAIN_RECIPIENT_FIELDS = (
    "referenceId", "type", "email", "name", "firstName", "lastName", "dob", "placeOfBirth",
    "passport", "primaryCurrency",
)  # fmt: skip
PLAIN_BANK_FIELDS = (
    "country", "accountHolderName", "swiftBic", "bankId", "branchId", "bankAddress", "bankCity",
    "bankPostalCode",
)  # fmt: skip


def build_recipient(tenant: Tenant, recipient: Recipient) -> JsonObject:
    fields, primary_account = recipient.fields, recipient.primary_account
    return {
        "id": recipient.id,
        **{name: fields.get(name) for name in PLAIN_RECIPIENT_FIELDS},
        "status": recipient.status,
        "complianceStatus": recipient.compliance_status,
        "compliance": build_compliance(recipient),
        tenant.vocabulary.avatar_url: f"https://example.com/avatars/{recipient.id}.png",
        "language": fields.get("language", "en"),
        "ssn": mask_value(fields.get("ssn")),
        "governmentIds": [
            {**government_id, "value": mask_value(government_id["value"])}
            for government_id in fields.get("governmentIds", [])
        ],
        "address": {name: recipient.address.get(name) for name in ADDRESS_CHECKS},
        "routeType": _select_payout_route(primary_account),
        "routeMinimum": find_route_minimum(recipient),
        "estimatedFees": find_payment_fee(recipient),
        "payoutMethod": primary_account.type if primary_account else None,
        "accounts": [build_account(account) for account in recipient.accounts],
        "tags": fields.get("tags", []),
        "contactEmails": fields.get("contactEmails", []),
        "createdAt": format_timestamp(recipient.created_at),
        "updatedAt": format_timestamp(recipient.updated_at),
    }


def build_compliance(recipient: Recipient) -> JsonObject:
    return {
        "status": recipient.compliance_status,
        "checkedAt": format_timestamp(recipient.compliance_checked_at),
    }


def build_reduced_recipient(payee: Recipient) -> JsonObject:
    return {
        "id": payee.id,
        "referenceId": payee.fields.get("referenceId"),
        "email": payee.fields["email"],
        "name": payee.fields["name"],
        "status": payee.status,
        "country": payee.address.get("country"),
    }


def find_route_minimum(recipient: Recipient) -> str | None:
    # Section 2.3: null means that the profile is incomplete.
    if recipient.status == "incomplete":
        return None
    return ROUTE_MINIMUMS.get(str(_select_payout_route(recipient.primary_account)))


def find_payment_fee(recipient: Recipient) -> str:
    return ROUTE_FEES.get(str(_select_payout_route(recipient.primary_account)), "0.00")


def _select_payout_route(account: Account | None) -> str | None:
    if account is None:
        return None
    if account.type != BANK_TRANSFER:
        return "transfer"
    country = account.fields["country"]
    if country in WIRE_COUNTRIES:
        return "wire"
    if country in SEPA_COUNTRIES and account.fields["currency"] == "EUR":
        return "sepa"
    return LOCAL_ROUTES.get(country, "transfer")


def build_account(account: Account) -> JsonObject:
    common_fields = {
        "recipientAccountId": account.id,
        "primary": account.is_primary,
        "currency": account.fields["currency"],
        "type": account.type,
    }
    fields = account.fields
    if account.type != BANK_TRANSFER:
        own_field, _ = OWN_FIELDS.get(account.type, WALLET_FIELD)
        return common_fields | {own_field: fields[own_field]}
    return common_fields | {
        **{name: fields.get(name) for name in PLAIN_BANK_FIELDS},
        "accountNum": mask_value(fields.get("accountNum") or None),
        "iban": mask_value(fields.get("iban") or None),
        "bankName": "Unión de Crédito",
        "bankRegionCode": fields.get("bankRegion"),
    }


def build_batch(tenant: Tenant, batch: Batch) -> JsonObject:
    # An open batch that the balance does not cover is pending (section 1, item 8).
    is_pending = batch.state == "open" and not tenant.has_balance_for_batch(batch)
    return {
        "id": batch.id,
        "status": "pending" if is_pending else batch.state,
        "amount": money.format_amount(batch.amount),
        "totalPayments": len(batch.payments),
        "currency": batch.currency,
        "description": batch.description,
        **_build_timestamps(batch),
        "quoteExpiredAt": format_timestamp(batch.quote_expires_at),
        **batch.overrides,
    }


def _build_timestamps(batch: Batch) -> JsonObject:
    return {
        "sentAt": format_timestamp(batch.sent_at),
        "completedAt": format_timestamp(batch.completed_at),
        "createdAt": format_timestamp(batch.created_at),
        "updatedAt": format_timestamp(batch.updated_at),
    }


def build_summary(tenant: Tenant, batch: Batch) -> JsonObject:
    """Builds a summary: the batch's status and all payment details (section 4.3)."""
    payments = [build_listed_payment(tenant, payment) for payment in batch.payments.values()]
    return {**build_batch(tenant, batch), "payments": payments, **batch.overrides}


def build_payment(tenant: Tenant, payment: Payment) -> JsonObject:
    """Builds a payment, with the recipient in its current state."""
    return build_payment_fields(payment) | {"recipient": build_recipient(tenant, payment.recipient)}


def build_listed_payment(tenant: Tenant, payment: Payment) -> JsonObject:
    """Builds a payment of a batch's list: with a reduced recipient and three more fields."""
    # As of the last quote: the recipient may have another primary account by now.
    method, wallet = payment.terms.account_type, tenant.vocabulary.wallet
    return build_payment_fields(payment) | {
        "recipient": build_reduced_recipient(payment.recipient),
        "method": method,
        "methodDisplay": wallet.title() if method == wallet else METHOD_LABELS.get(str(method)),
        "isSupplyPayment": False,
    }


def build_payment_fields(payment: Payment) -> JsonObject:
    terms = payment.terms
    return {
        "id": payment.id,
        "status": payment.status,
        "sourceAmount": money.format_amount(terms.source_amount),
        "targetAmount": money.format_amount(terms.target_amount),
        "fees": money.format_amount(terms.fee),
        "recipientFees": money.format_amount(money.ZERO),
        "merchantFees": money.format_amount(terms.fee),
        "exchangeRate": money.format_rate(terms.rate),
        "fxRate": money.format_rate(terms.rate),
        "memo": payment.memo,
        "sourceCurrency": terms.source_currency,
        "sourceCurrencyName": money.look_up_currency_name(terms.source_currency),
        "targetCurrency": terms.target_currency,
        "targetCurrencyName": money.look_up_currency_name(terms.target_currency),
        "compliance": build_compliance(payment.recipient),
        "processedAt": format_timestamp(payment.processed_at),
        "createdAt": format_timestamp(payment.created_at),
        "updatedAt": format_timestamp(payment.updated_at),
        "batch": {"id": payment.batch.id, **_build_timestamps(payment.batch)},
        **payment.overrides,
    }


def build_balances(tenant: Tenant, words: Vocabulary | LegacyVocabulary) -> JsonObject:
    """Builds balances by currency, and the wallet balance if the tenant has one.

    No payment debits that one: the document does not say which balance funds payments to wallets.
    """
    entries: list[tuple[str, str, Decimal, str, str | None]] = [
        (currency, currency, amount, words.service, None)
        for currency, amount in tenant.balances.items()
    ]
    if tenant.wallet_balance is not None:
        account = (words.wallet, f"{tenant.merchant}@example.com")
        entries.append((words.wallet, *tenant.wallet_balance, *account))
    return {
        name: {
            # The document marks one balance as primary and does not say which: here the first one.
            "primary": name == entries[0][0],
            "amount": money.format_amount(amount),
            "currency": currency,
            "type": type_,
            "accountNumber": account_number,
        }
        for name, currency, amount, type_, account_number in entries
    }
