"""Descriptions and constraints from the legacy document that types cannot express.

A test checks that every name in these tables is a field of a shape, or one of OPERATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings import legacy

Said = dict[str, Any]

_TIME: Said = {"format": "date-time", "examples": ["2024-03-01T12:00:00.000Z"]}
_MASKED = "Shown masked. Sending the mask back changes nothing."
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
    # Every field with this name
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
    # A single field
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
        "description": "Both flat and nested: the legacy document shows both.",
        "properties": {
            **_CODE_AND_NAME,
            "currency": {"type": "object", "properties": _CODE_AND_NAME},
        },
    },
    "RecipientBody.ssn": {"description": "US only, without spaces or hyphens."},
    "RecipientBody.currency": {"description": "The primary currency."},
    "BankBody.accountNum": {"description": "Required in countries without IBANs."},
    "BankBody.iban": {"description": "For countries with IBANs."},
    "BankBody.routing": {"description": "US only, nine digits."},
    "BankBody.branchNum": {"description": "Canada only, five digits."},
    "BankBody.institution": {"description": "Canada only, three digits."},
    "BankBody.swiftBic": {
        "description": "For countries reached by wire transfer; 8 or 11 characters."
    },
    "BankBody.bankRegion": {"description": "Alias of bankProvince."},
    "BankBody.governmentId": {"description": "Required in some countries."},
    "PaymentBody.sourceAmount": {
        "description": "Amount in the batch's currency. Alternative to targetAmount."
    },
    "PaymentBody.targetAmount": {
        "description": "Amount in targetCurrency. Alternative to sourceAmount."
    },
    "PaymentBody.sourceCurrency": {"description": "Required if the batch has none."},
    "BatchBody.sourceCurrency": {"description": "Alternatively, each payment can give it."},
    "BatchChangeBody.payments": {
        "description": "Payments to add. An entry with an `id` changes that payment."
    },
    "Batch.amount": {"description": "The exact sum of the source amounts.", **_example("100.00")},
    "Summary.processed_by": _example("API"),
    "BalanceEntry.amount": {"type": ["string", "null"], **_example("100.00")},
    "BalancesAnswer.balances": {"description": "By currency code; the wallet account by its name."},
    "Country.regions": {
        "description": "Region names by region code.",
        **_example({"ON": "Ontario"}),
    },
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
"""Enumerated fields. Words of the vocabulary are given by their neutral names."""

INSTEAD: Mapping[str, Any] = {"ListedPayment.recipient": legacy.BatchRecipient}
"""Fields whose real shape differs from the declared one, because a TypedDict cannot express it."""

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
    "startDate": {"type": "string", "format": "date", "description": "Earliest creation date."},
    "endDate": {"type": "string", "format": "date", "description": "Latest creation date."},
    "status": {"type": "string"},
    "complianceStatus": {"type": "string", "enum": ["pending", "verified", "blocked"]},
    "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
    "city": {"type": "string"},
    "payoutMethod": {"type": "string", "enum": ["wallet", "bank-transfer"]},
    "payoutCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "recipient": {
        "type": "string",
        "description": "Id or email address of a recipient of the payment, or of any payment in "
        "the batch.",
    },
    "sourceCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "targetCurrency": {"type": "string", "pattern": "^[A-Z]{3}$"},
}
"""List query parameters of the legacy interface, section 4.1. The last three are undocumented but
sent by clients, as are most of the others in lists of batches and payments."""

SEARCHED: Mapping[str, str] = {
    "list_recipients": "Matches any part of name, email and referenceId.",
    "list_batches": "Matches any part of the batch's id.",
    "list_batch_payments": "Matches any part of the recipient's name, email and referenceId, and of the "
    "payment's id and memo.",
    "list_payments": "Matches like the search in the payments of a batch.",
    "read_recipient_payments": "Matches like the search in the payments of a batch.",
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
"""Required fields that a shape does not express, because other operations share it."""

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
"""Additional error statuses (legacy interface, section 4), which neither path nor body imply."""
