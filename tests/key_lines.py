"""API keys for tests, imported as an operator does."""

from __future__ import annotations

import json
from typing import Any

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.storage import Store


async def import_keys_into(store: Store, *lines: dict[str, Any]) -> None:
    await import_keys(store, parse_key_lines("\n".join(map(json.dumps, lines)).encode()))


def build_key_line(merchant: str = "acme", **changes: Any) -> dict[str, Any]:
    return {
        "merchant": merchant,
        "environment": "live",
        "api_key": f"key-of-{merchant}-0123456789abcdefghij",
        "access_key": f"access-{merchant}",
        "secret_key": f"secret-of-{merchant}",
        **changes,
    }
