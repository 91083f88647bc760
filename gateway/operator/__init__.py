"""Operator actions behind the commands and the console: freezes, modes, cutover, retention, checks."""

REFERENCE_PREFIX = "payout-gateway-rehearsal-"
"""Begins the referenceId of each recipient, and the description of each batch, of a rehearsal."""

UNKNOWN_MERCHANT = "no merchant has this name; `payout-gateway keys list` shows the merchants"
UNKNOWN_TENANT = (
    "no key has this merchant and environment; `payout-gateway keys list` shows the keys"
)


class ActionRefused(Exception):
    """An action of an operator is refused. The message is one line."""
