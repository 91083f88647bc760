"""Immutable value classes that cost no more than mutable ones.

The type checker enforces immutability; nothing does at run time. The ``__init__`` of a frozen
dataclass bypasses its own ``__setattr__`` for each field, which is three times slower, and a
request creates about thirty of these values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as frozen_dataclass
else:
    from dataclasses import dataclass
    from functools import partial

    def frozen_dataclass(*, frozen: bool, slots: bool) -> partial[type]:
        """Accepts the parameters that the type checker needs; equal values have equal hashes."""
        return partial(dataclass, slots=slots, unsafe_hash=frozen)


__all__ = ["frozen_dataclass"]
