"""Names that nobody has had or can guess: of requests, and of what is made for one."""

from __future__ import annotations

import os

LENGTH = 12
"""Bytes of one."""

AT_ONCE = 256
"""So many are taken from the system at a time: to ask it takes longer than to make one of it."""

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


# A process that is forked would go on with the same ones.
os.register_at_fork(after_in_child=_forget)
