"""Both interfaces, and how one becomes the other: pure, without I/O, clock or randomness."""

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
"""Every operation of the legacy interface, all 29."""

UNLISTED = payments.UNLISTED
"""What clients in the field use besides."""

SIGNED = (starts.START,)
"""What clients of the current interface sign themselves and the ledger has a part in."""

for _operation in OPERATIONS:
    if _operation.takes is not None:
        kinds.build_type_adapter(_operation.takes)
