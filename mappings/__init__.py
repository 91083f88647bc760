"""Both interfaces, and how one becomes the other: pure, without I/O, clock or randomness."""

from mappings import geography, kinds, payout_methods, recipients

OPERATIONS = (*recipients.OPERATIONS, *payout_methods.OPERATIONS, *geography.OPERATIONS)
"""Every operation of the legacy interface."""

for _operation in OPERATIONS:
    if _operation.takes is not None:
        kinds.reader(_operation.takes)
