"""Random, unique ids, for requests and for objects created for them."""

from __future__ import annotations

import os

LENGTH = 12
"""Random bytes in an id."""

AT_ONCE = 256
"""Ids per read of random bytes: the system call costs more than formatting an id."""

_left = b""


def token() -> str:
    global _left  # noqa: PLW0603 - one supply a process
    if not _left:
        _left = os.urandom(LENGTH * AT_ONCE)
    made, _left = _left[:LENGTH], _left[LENGTH:]
    return made.hex()


def _forget() -> None:
    global _left  # noqa: PLW0603
    _left = b""


# A forked process would otherwise generate the same ids.
os.register_at_fork(after_in_child=_forget)
