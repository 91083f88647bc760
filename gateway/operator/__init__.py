"""Operator actions behind the commands and the console: freezes, modes, cutover, retention, checks."""

from __future__ import annotations

from collections.abc import Callable

from gateway.payloads import json_codec
from mappings.effects import JSON

REFERENCE_PREFIX = "payout-gateway-rehearsal-"
"""Begins the referenceId of each recipient, and the description of each batch, of a rehearsal."""

UNKNOWN_MERCHANT = "no merchant has this name; `payout-gateway keys list` shows the merchants"
UNKNOWN_TENANT = (
    "no key has this merchant and environment; `payout-gateway keys list` shows the keys"
)


ProgressCallback = Callable[[int, int | None], None]
"""Called with the amount done and the total, if the total is known."""


class ActionRefused(Exception):
    """An action of an operator is refused. The message is one line."""


def parse_object(data: bytes) -> dict[str, JSON]:
    """Parses the object in an answer of a service; empty if it is no JSON object."""
    try:
        value = json_codec.loads(data)
    except json_codec.JsonError:
        return {}
    return value if isinstance(value, dict) else {}
