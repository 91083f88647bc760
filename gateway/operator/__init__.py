"""Operator actions behind the commands and the console: freezes, modes, cutover, retention, checks."""

from collections.abc import Callable

from gateway.config import OperatorError

REFERENCE_PREFIX = "payout-gateway-rehearsal-"
"""Begins the referenceId of each recipient, and the description of each batch, of a rehearsal."""

PROBE_TARGET = "/v1/recipients?page=1&pageSize=1"

UNKNOWN_MERCHANT = "no merchant has this name; `payout-gateway keys list` shows the merchants"
UNKNOWN_TENANT = (
    "no key has this merchant and environment; `payout-gateway keys list` shows the keys"
)


ProgressCallback = Callable[[int, int | None], None]
"""Called with the amount done and the total, if the total is known."""


class ActionRefused(OperatorError):
    """An action of an operator is refused."""
