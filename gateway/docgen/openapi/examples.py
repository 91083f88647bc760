"""Example bodies, hand-written because tests send them, and answers generated from schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDS: Mapping[str, str] = {
    "recipients": "R-91XQ0ZXXXZ8CC0DW",
    "batches": "B-912QAJ4S8ZX0P3KB",
    "payments": "P-91XPU407RJVK1B6T",
    "countries": "CA",
}
"""By the path segment before the id."""

_BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}
_WALLET = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@example.com"}},
}
_PAYMENT = {"recipient": {"id": IDS["recipients"]}, "sourceAmount": "100.00", "memo": "March"}

BODIES: Mapping[str, Any] = {
    "create_recipient": {
        "type": "individual",
        "firstName": "Ada",
        "lastName": "Lovelace",
        "email": "ada@example.com",
        "referenceId": "employee-12",
        "address": {
            "street1": "1 Main Street",
            "city": "New York",
            "region": "NY",
            "country": "US",
        },
        "payout": _BANK,
    },
    "update_recipient": {"lastName": "King", "status": "inactive"},
    "delete_recipients": {"ids": [IDS["recipients"]]},
    "create_payout_method": _BANK,
    "update_payout_method": _WALLET,
    "create_batch": {"sourceCurrency": "USD", "description": "March", "payments": [_PAYMENT]},
    "update_batch": {
        "payments": [_PAYMENT],
        "update_payments": [{"id": IDS["payments"], "sourceAmount": "120.00"}],
    },
    "delete_batches": {"ids": [IDS["batches"]]},
    "create_payment": {
        "recipient": {"email": "ada@example.com"},
        "targetAmount": "90.50",
        "targetCurrency": "EUR",
    },
    "update_payment": {"sourceAmount": "110.00"},
}
"""By operation, in the neutral vocabulary."""

_PLAIN: Mapping[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1,
    "boolean": False,
    "null": None,
}


def build_schema_example(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """Builds a value that matches a schema, from the examples in the schema if it has some."""
    if "$ref" in schema:
        return build_schema_example(components[schema["$ref"].rpartition("/")[2]], components)
    if "const" in schema:
        return schema["const"]
    for given in ("examples", "enum"):
        if schema.get(given):
            return schema[given][0]
    if "anyOf" in schema:
        return build_schema_example(schema["anyOf"][0], components)
    types = schema.get("type", "null")
    type_ = types if isinstance(types, str) else types[0]
    if type_ == "object":
        return _object(schema, components)
    if type_ == "array":
        return [build_schema_example(schema["items"], components)] if schema.get("items") else []
    return _PLAIN[type_]


def _object(schema: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        name: build_schema_example(one, components)
        for name, one in schema.get("properties", {}).items()
    }
    if isinstance(others := schema.get("additionalProperties"), dict):
        # Maps in answers are keyed by currency code.
        named["USD"] = build_schema_example(others, components)
    return named
