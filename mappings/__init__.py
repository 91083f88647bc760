"""The legacy and the current interface, and the translation between them.

Pure code: no I/O, no clock, no randomness.
"""

from mappings import (
    balances,
    batches,
    geography,
    kinds,
    payments,
    payout_methods,
    recipients,
    starts,
)

OPERATIONS = (
    *recipients.OPERATIONS,
    *payout_methods.OPERATIONS,
    *batches.OPERATIONS,
    *payments.OPERATIONS,
    *balances.OPERATIONS,
    *geography.OPERATIONS,
)
"""All 29 operations of the legacy interface."""

UNLISTED = payments.UNLISTED
"""Operations that clients in the field use although the legacy document does not list them."""

SIGNED = (starts.START,)
"""Signed requests of clients that the gateway does not only pass through: it also records them."""

# Building an adapter takes milliseconds: the first request of a process must not pay for it.
for _operation in OPERATIONS:
    if _operation.takes is not None:
        kinds.build_type_adapter(_operation.takes)
