"""Random, unique ids, for requests and for objects created for them."""

from __future__ import annotations

import os

ID_BYTES = 12
"""Random bytes in an id."""

IDS_PER_READ = 256
"""Ids per read of random bytes: the system call costs more than formatting an id."""

_supply: list[str] = []


def generate_hex_id() -> str:
    if not _supply:
        # Random bytes of the operating system differ between processes and hosts without a shared
        # counter.
        text, length = os.urandom(ID_BYTES * IDS_PER_READ).hex(), ID_BYTES * 2
        _supply.extend(text[start : start + length] for start in range(0, len(text), length))
    return _supply.pop()


# A forked process would otherwise generate the same ids.
os.register_at_fork(after_in_child=_supply.clear)
