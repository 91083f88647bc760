"""What the legacy document says of fields and parameters beyond their types, and of operations.

Every name in these tables is one of the shapes' or of OPERATIONS: a test finds one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings import legacy

Said = dict[str, Any]

_TIME: Said = {"format": "date-time", "examples": ["2024-03-01T12:00:00.000Z"]}
_MASKED = "Shown masked. The mask that is shown, sent back, is no change."
_FIGURE: Said = {"type": "number", "examples": [100.5]}
_FIGURES = ("value", "fees", "recipientFees", "merchantFees", "net")
_CODE_AND_NAME: Said = {
    "code": {"type": ["string", "null"], "examples": ["USD"]},
    "name": {"type": ["string", "null"], "examples": ["US Dollar"]},
}


def _example(*values: Any) -> Said:
    return {"examples": list(values)}


def _each(holders: tuple[str, ...], names: tuple[str, ...], said: Said) -> dict[str, Said]:
    return {f"{holder}.{name}": said for holder in holders for name in names}


FIELDS: Mapping[str, Said] = {
    # Of every field of the name
    "checkedAt": _TIME,
    "createdAt": _TIME,
    "updatedAt": _TIME,
    "sentAt": _TIME,
    "completedAt": _TIME,
    "processedAt": _TIME,
    "serverTime": _TIME,
    "quoteExpiredAt": _TIME,
    "sourceAmount": _example("100.00"),
    "targetAmount": _example("100.00"),
    "exchangeRate": _example("1.000000"),
    "fxRate": _example("1.000000"),
    "primaryCurrency": _example("USD"),
    "sourceCurrency": _example("USD"),
    "targetCurrency": _example("USD"),
    "currency": _example("USD"),
    "sourceCurrencyName": _example("US Dollar"),
    "targetCurrencyName": _example("US Dollar"),
    "country": _example("US"),
    "countryCode": _example("US"),
    "email": _example("ada@example.com"),
    "name": _example("Ada Lovelace"),
    "firstName": _example("Ada"),
    "lastName": _example("Lovelace"),
    "description": _example("March"),
    "language": _example("en"),
    "dob": _example("1990-12-10"),
    "page": _example(1),
    "pages": _example(1),
    "records": _example(1),
    "referenceId": _example("employee-12"),
    "memo": _example("March"),
    "avatarUrl": _example("https://example.com/ada.png"),
    "fees": _example("0.00"),
    "recipientFees": _example("0.00"),
    "merchantFees": _example("0.00"),
    "street1": _example("1 Main Street"),
    "city": _example("New York"),
    "region": _example("NY"),
    "count": _example(1),
    "totalPayments": _example(1),
    # Of one
    "Recipient.status": {
        "description": "`active`, `incomplete`, `inactive`, `disabled` or `suspended`.",
        **_example("active"),
    },
    "Recipient.complianceStatus": {
        "description": "`pending`, `verified` or `blocked`.",
        **_example("verified"),
    },
    "Recipient.type": _example("individual"),
    "Recipient.ssn": {"description": _MASKED, **_example("****01")},
    "Recipient.passport": {"description": _MASKED, **_example("****77")},
    "Compliance.status": _example("verified"),
    "Bank.accountNum": {"description": _MASKED, **_example("****67")},
    "Bank.iban": {"description": _MASKED, **_example("****00")},
    "Bank.governmentId": {"description": _MASKED, **_example("****01")},
    "Hold.limit": _example(1000),
    "Primary.currency": {
        "type": "object",
        "description": "Flat, and nested once more: the legacy document shows both.",
        "properties": {
            **_CODE_AND_NAME,
            "currency": {"type": "object", "properties": _CODE_AND_NAME},
        },
    },
    "RecipientBody.ssn": {"description": "US only, without spaces or hyphens."},
    "RecipientBody.currency": {"description": "The primary currency."},
    "BankBody.accountNum": {"description": "Required in countries without IBANs."},
    "BankBody.iban": {"description": "In countries with IBANs."},
    "BankBody.routing": {"description": "US only, nine digits."},
    "BankBody.branchNum": {"description": "Canada only, five digits."},
    "BankBody.institution": {"description": "Canada only, three digits."},
    "BankBody.swiftBic": {"description": "In countries served by wire; 8 or 11 characters."},
    "BankBody.bankRegion": {"description": "Another name of bankProvince."},
    "BankBody.governmentId": {"description": "In a few countries."},
    "PaymentBody.sourceAmount": {"description": "In the batch's currency; or targetAmount."},
    "PaymentBody.targetAmount": {"description": "In targetCurrency; or sourceAmount."},
    "PaymentBody.sourceCurrency": {"description": "Where the batch names none."},
    "BatchBody.sourceCurrency": {"description": "May be given by each payment instead."},
    "BatchChangeBody.payments": {"description": "To add; one with an `id` is a change."},
    "Batch.amount": {"description": "The exact sum of the source amounts.", **_example("100.00")},
    "Summary.processed_by": _example("API"),
    "BalanceEntry.amount": {"type": ["string", "null"], **_example("100.00")},
    "BalancesAnswer.balances": {"description": "By currency code; the wallet account by its name."},
    "Country.regions": {"description": "Region code to name.", **_example({"ON": "Ontario"})},
    "Country.code": _example("CA"),
    "Country.name": _example("Canada"),
    "Currency.code": _example("CAD"),
    "Currency.name": _example("Canadian Dollar"),
    **_each(("Figures",), _FIGURES, _FIGURE),
    **_each(("MerchantBalances",), ("GatewayTotal", "ServiceTotal"), _FIGURE),
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    "PrimaryBody.method": ("bank", "wallet"),
    "RecipientBody.status": ("active", "inactive", "disabled", "suspended", "incomplete"),
    "Batch.status": ("open", "pending", "processing", "accepted", "complete"),
    "Summary.status": ("open", "pending", "processing", "accepted", "complete"),
    "Payment.status": ("pending", "processed", "failed", "returned"),
    "BalanceEntry.type": ("service", "wallet"),
    "MethodFigures.accountType": ("service_account_type", "wallet_account_type"),
    "DoneAnswer.object": ("updated", "deleted"),
}
"""Fields that never hold anything else; words of the vocabulary by their neutral names."""

INSTEAD: Mapping[str, Any] = {"ListedPayment.recipient": legacy.BatchRecipient}
"""Fields that hold another shape than theirs says: a TypedDict cannot say it."""

_PAGE: Said = {"type": "integer", "minimum": 1}

PARAMETERS: Mapping[str, Said] = {
    "page": {**_PAGE, "default": 1},
    "pageSize": {**_PAGE, "default": 10},
    "search": {"type": "string"},
    "orderBy": {
        "type": "string",
        "default": "createdAt",
        "description": "status, country, city, name, email, id, complianceStatus and others.",
    },
    "sortBy": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "startDate": {"type": "string", "format": "date", "description": "By creation date."},
    "endDate": {"type": "string", "format": "date", "description": "By creation date."},
    "status": {"type": "string"},
    "complianceStatus": {"type": "string", "enum": ["pending", "verified", "blocked"]},
    "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
    "city": {"type": "string"},
    "payoutMethod": {"type": "string", "enum": ["wallet", "bank-transfer"]},
    "payoutCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "recipient": {
        "type": "string",
        "description": "Whom a payment pays, or one of a batch's: a recipient's id or address.",
    },
    "sourceCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "targetCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
}
"""Legacy interface, section 4.1, list query parameters; the last three, and most of the others in lists
of batches and payments, are those that clients send besides."""

SEARCHED: Mapping[str, str] = {
    "list_recipients": "Anywhere in name, email and referenceId.",
    "list_batches": "Anywhere in the batch's id.",
    "list_batch_payments": "Anywhere in the recipient's name, email and referenceId, the payment's id and memo.",
    "list_payments": "As in the payments of a batch.",
    "read_recipient_payments": "As in the payments of a batch.",
}

_WHOM: Said = {"anyOf": [{"required": ["id"]}, {"required": ["email"]}]}
_HOW_MUCH: Said = {
    "oneOf": [
        {"required": ["sourceAmount"]},
        {"required": ["targetAmount", "targetCurrency"]},
    ]
}
_PAYMENT: Said = {"required": ["recipient"], "properties": {"recipient": _WHOM}, **_HOW_MUCH}

NEEDS: Mapping[str, Said] = {
    "create_recipient": {
        "required": ["type", "email"],
        "oneOf": [
            {
                "properties": {"type": {"const": "individual"}},
                "required": ["firstName", "lastName"],
            },
            {"properties": {"type": {"const": "business"}}, "required": ["name"]},
        ],
    },
    "create_payout_method": {"required": ["primary", "accounts"]},
    "create_batch": {"properties": {"payments": {"items": _PAYMENT}}},
    "create_payment": _PAYMENT,
}
"""What a body must have that its shape, which other operations take too, does not say."""

ALSO: Mapping[str, tuple[int, ...]] = {
    "delete_recipients": (404,),
    "delete_batches": (404,),
    "delete_batch": (406,),
    "generate_quote": (406,),
    "read_batch_summary": (406,),
    "start_batch": (406,),
    "delete_payment": (406,),
    "read_balances": (404,),
    "read_service_balances": (404,),
    "read_wallet_balance": (404,),
}
"""Statuses (legacy interface, section 4) that do not follow from a path's ids, or from a body."""
