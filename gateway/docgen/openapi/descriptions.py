"""Descriptions and constraints from the legacy document that types cannot express.

A test checks that every name in these tables is a field of a shape, or one of OPERATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings import legacy

Description = dict[str, Any]

_TIME: Description = {"format": "date-time", "examples": ["2024-03-01T12:00:00.000Z"]}
_MASKED_NOTE = "Shown masked. Sending the mask back changes nothing."
_AMOUNT_SCHEMA: Description = {"type": "number", "examples": [100.5]}
_AMOUNT_FIELDS = ("value", "fees", "recipientFees", "merchantFees", "net")
_CODE_AND_NAME: Description = {
    "code": {"type": ["string", "null"], "examples": ["USD"]},
    "name": {"type": ["string", "null"], "examples": ["US Dollar"]},
}


def _map_fields_to_description(
    holders: tuple[str, ...], names: tuple[str, ...], description: Description
) -> dict[str, Description]:
    return {f"{holder}.{name}": description for holder in holders for name in names}


_EXAMPLES: Mapping[str, Any] = {
    "sourceAmount": "100.00", "targetAmount": "100.00", "exchangeRate": "1.000000",
    "fxRate": "1.000000", "primaryCurrency": "USD", "sourceCurrency": "USD",
    "targetCurrency": "USD", "currency": "USD", "sourceCurrencyName": "US Dollar",
    "targetCurrencyName": "US Dollar", "country": "US", "countryCode": "US",
    "email": "ada@example.com", "name": "Ada Lovelace", "firstName": "Ada", "lastName": "Lovelace",
    "description": "March", "language": "en", "dob": "1990-12-10", "page": 1, "pages": 1,
    "records": 1, "referenceId": "employee-12", "memo": "March",
    "avatarUrl": "https://example.com/ada.png", "fees": "0.00", "recipientFees": "0.00",
    "merchantFees": "0.00", "street1": "1 Main Street", "city": "New York", "region": "NY",
    "count": 1, "totalPayments": 1, "Recipient.type": "individual",
    "Compliance.status": "verified", "Hold.limit": 1000, "Summary.processed_by": "API",
    "Country.code": "CA", "Country.name": "Canada", "Currency.code": "CAD",
    "Currency.name": "Canadian Dollar",
}  # fmt: skip
"""Examples of fields: of every field with a name, or of one of an object."""

_TIMES = (
    "checkedAt", "createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "serverTime",
    "quoteExpiredAt",
)  # fmt: skip

FIELDS: Mapping[str, Description] = {
    **{name: {"examples": [value]} for name, value in _EXAMPLES.items()},
    **dict.fromkeys(_TIMES, _TIME),
    "Recipient.status": {
        "description": "`active`, `incomplete`, `inactive`, `disabled` or `suspended`.",
        "examples": ["active"],
    },
    "Recipient.complianceStatus": {
        "description": "`pending`, `verified` or `blocked`.",
        "examples": ["verified"],
    },
    "Recipient.ssn": {"description": _MASKED_NOTE, "examples": ["****01"]},
    "Recipient.passport": {"description": _MASKED_NOTE, "examples": ["****77"]},
    "Bank.accountNum": {"description": _MASKED_NOTE, "examples": ["****67"]},
    "Bank.iban": {"description": _MASKED_NOTE, "examples": ["****00"]},
    "Bank.governmentId": {"description": _MASKED_NOTE, "examples": ["****01"]},
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
    "Batch.amount": {
        "description": "The exact sum of the source amounts.",
        "examples": ["100.00"],
    },
    "BalanceEntry.amount": {"type": ["string", "null"], "examples": ["100.00"]},
    "BalancesAnswer.balances": {"description": "By currency code; the wallet account by its name."},
    "Country.regions": {
        "description": "Region names by region code.",
        "examples": [{"ON": "Ontario"}],
    },
    **_map_fields_to_description(("Totals",), _AMOUNT_FIELDS, _AMOUNT_SCHEMA),
    **_map_fields_to_description(
        ("MerchantBalances",), ("GatewayTotal", "ServiceTotal"), _AMOUNT_SCHEMA
    ),
}

ENUM_VALUES: Mapping[str, tuple[str, ...]] = {
    "PrimaryBody.method": ("bank", "wallet"),
    "RecipientBody.status": ("active", "inactive", "disabled", "suspended", "incomplete"),
    "Batch.status": ("open", "pending", "processing", "accepted", "complete"),
    "Summary.status": ("open", "pending", "processing", "accepted", "complete"),
    "Payment.status": ("pending", "processed", "failed", "returned"),
    "BalanceEntry.type": ("service", "wallet"),
    "MethodTotals.accountType": ("service_account_type", "wallet_account_type"),
    "ObjectAnswer.object": ("updated", "deleted"),
}
"""Enumerated fields. Words of the vocabulary are given by their neutral names."""

REPLACED_SHAPES: Mapping[str, Any] = {"ListedPayment.recipient": legacy.BatchRecipient}
"""Fields whose real shape differs from the declared one, because a TypedDict cannot express it."""

_PAGE_SCHEMA: Description = {"type": "integer", "minimum": 1}

PARAMETERS: Mapping[str, Description] = {
    "page": {**_PAGE_SCHEMA, "default": 1},
    "pageSize": {**_PAGE_SCHEMA, "default": 10},
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

SEARCH_DESCRIPTIONS: Mapping[str, str] = {
    "list_recipients": "Matches any part of name, email and referenceId.",
    "list_batches": "Matches any part of the batch's id.",
    "list_batch_payments": "Matches any part of the recipient's name, email and referenceId, and of the "
    "payment's id and memo.",
    "list_payments": "Matches like the search in the payments of a batch.",
    "read_recipient_payments": "Matches like the search in the payments of a batch.",
}

_RECIPIENT_SCHEMA: Description = {"anyOf": [{"required": ["id"]}, {"required": ["email"]}]}
_AMOUNT_CHOICE: Description = {
    "oneOf": [
        {"required": ["sourceAmount"]},
        {"required": ["targetAmount", "targetCurrency"]},
    ]
}
_PAYMENT_SCHEMA: Description = {
    "required": ["recipient"],
    "properties": {"recipient": _RECIPIENT_SCHEMA},
    **_AMOUNT_CHOICE,
}

BODY_CONSTRAINTS: Mapping[str, Description] = {
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
    "create_batch": {"properties": {"payments": {"items": _PAYMENT_SCHEMA}}},
    "create_payment": _PAYMENT_SCHEMA,
}
"""Required fields that a shape does not express, because other operations share it."""

ADDITIONAL_STATUSES: Mapping[str, tuple[int, ...]] = {
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
