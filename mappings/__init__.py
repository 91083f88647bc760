"""The legacy and the current interface, and the translation between them.

Pure code: no I/O, no clock, no randomness.
"""

from mappings import (
    balances,
    batches,
    forwarded_writes,
    geography,
    payments,
    payout_methods,
    recipients,
    request_bodies,
    signed_writes,
)

OPERATIONS = (
    *recipients.OPERATIONS,
    *payout_methods.OPERATIONS,
    *batches.OPERATIONS,
    *payments.OPERATIONS,
    *balances.OPERATIONS,
    *geography.OPERATIONS,
)
"""All operations of the legacy interface."""

UNLISTED = payments.UNLISTED
"""Operations that clients in the field use although the legacy document does not list them."""

SIGNED = (signed_writes.START, signed_writes.CHANGE)
"""Signed requests of clients that the gateway does not only pass through: it also records them."""

FORWARDED = tuple(
    forwarded_writes.build_forwarded_operation(operation)
    for operation in (*OPERATIONS, *UNLISTED)
    if operation.method != "GET"
)
"""The writes of the legacy interface, as they are executed at the legacy service."""

# Compiling takes a while: the first request of a process must not pay for it.
for _operation in OPERATIONS:
    if _operation.body_shape is not None:
        request_bodies.compile_body_parser(_operation.body_shape)
