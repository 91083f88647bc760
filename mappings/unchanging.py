"""Values: dataclasses that nobody changes.

The type checker sees to that, and nothing does while the program runs: there a frozen dataclass sets each
field past its own guard, which takes three times as long, and every request is told in some thirty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as unchanging
else:
    from dataclasses import dataclass
    from functools import partial

    def unchanging(*, frozen: bool, slots: bool) -> partial[type]:
        """To be told what the type checker is to know; equal values have equal hashes."""
        return partial(dataclass, slots=slots, unsafe_hash=frozen)


__all__ = ["unchanging"]
