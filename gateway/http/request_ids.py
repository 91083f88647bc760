"""Random, unique ids, for requests and for objects created for them."""

from __future__ import annotations

import os

ID_BYTES = 12
"""Random bytes in an id."""

IDS_PER_READ = 256
"""Ids per read of random bytes: the system call costs more than formatting an id."""

_random_bytes = b""


def generate_hex_id() -> str:
    global _random_bytes  # noqa: PLW0603 - one supply a process
    if not _random_bytes:
        # Random bytes of the operating system differ between processes and hosts without a shared
        # counter.
        _random_bytes = os.urandom(ID_BYTES * IDS_PER_READ)
    id_bytes, _random_bytes = _random_bytes[:ID_BYTES], _random_bytes[ID_BYTES:]
    return id_bytes.hex()


def _discard_random_bytes() -> None:
    global _random_bytes  # noqa: PLW0603
    _random_bytes = b""


# A forked process would otherwise generate the same ids.
os.register_at_fork(after_in_child=_discard_random_bytes)
