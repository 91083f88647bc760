"""Example bodies, hand-written because tests send them, and answers generated from schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLE_IDS: Mapping[str, str] = {
    "recipients": "R-91XQ0ZXXXZ8CC0DW",
    "batches": "B-912QAJ4S8ZX0P3KB",
    "payments": "P-91XPU407RJVK1B6T",
    "countries": "CA",
}
"""Example ids by the path segment before the id."""

_BANK_PAYOUT = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}
_WALLET_PAYOUT = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@example.com"}},
}
_EXAMPLE_PAYMENT = {
    "recipient": {"id": EXAMPLE_IDS["recipients"]},
    "sourceAmount": "100.00",
    "memo": "March",
}

EXAMPLE_BODIES: Mapping[str, Any] = {
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
        "payout": _BANK_PAYOUT,
    },
    "update_recipient": {"lastName": "King", "status": "inactive"},
    "delete_recipients": {"ids": [EXAMPLE_IDS["recipients"]]},
    "create_payout_method": _BANK_PAYOUT,
    "update_payout_method": _WALLET_PAYOUT,
    "create_batch": {
        "sourceCurrency": "USD",
        "description": "March",
        "payments": [_EXAMPLE_PAYMENT],
    },
    "update_batch": {
        "payments": [_EXAMPLE_PAYMENT],
        "update_payments": [{"id": EXAMPLE_IDS["payments"], "sourceAmount": "120.00"}],
    },
    "delete_batches": {"ids": [EXAMPLE_IDS["batches"]]},
    "create_payment": {
        "recipient": {"email": "ada@example.com"},
        "targetAmount": "90.50",
        "targetCurrency": "EUR",
    },
    "update_payment": {"sourceAmount": "110.00"},
}
"""Request bodies by operation, in the neutral vocabulary."""

_EXAMPLE_BY_TYPE: Mapping[str, Any] = {
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
    for keyword in ("examples", "enum"):
        if schema.get(keyword):
            return schema[keyword][0]
    if "anyOf" in schema:
        return build_schema_example(schema["anyOf"][0], components)
    types = schema.get("type", "null")
    type_ = types if isinstance(types, str) else types[0]
    if type_ == "object":
        return _build_object_example(schema, components)
    if type_ == "array":
        return [build_schema_example(schema["items"], components)] if schema.get("items") else []
    return _EXAMPLE_BY_TYPE[type_]


def _build_object_example(
    schema: Mapping[str, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    example = {
        name: build_schema_example(property_schema, components)
        for name, property_schema in schema.get("properties", {}).items()
    }
    if isinstance(value_schema := schema.get("additionalProperties"), dict):
        # Maps in answers are keyed by currency code.
        example["USD"] = build_schema_example(value_schema, components)
    return example
