"""Maps ids of control to ids of candidate.

Each side has its own ids. Ids at the same path of the two answers name the same object, from then
on everywhere: in paths, queries, bodies and free text. If an id later appears opposite another one,
that is a difference.
"""

from __future__ import annotations

import re

from gateway.compare.operations import ID, IN_TEXT

_WHOLE = re.compile(rf'"({ID.pattern.replace("(", "(?:")})"')
"""An id that is a whole string value of a JSON text."""


class Pairing:
    """Pairs of ids. Without ``has_separate_ids`` an id is compared like any other text."""

    def __init__(self, *, apart: bool = True) -> None:
        self.apart = apart
        self._candidates: dict[str, tuple[str, int]] = {}
        self._controls: dict[str, str] = {}

    def pair(self, control: str, candidate: str, step: int) -> str:
        """Pairs two ids. Returns the problem if one is already paired with another; pairs never change."""
        if not self.apart:
            return "" if control == candidate else "different ids"
        known, other = self._candidates.get(control), self._controls.get(candidate)
        if known is None and other is None:
            self._candidates[control] = (candidate, step)
            self._controls[candidate] = control
        elif known is not None and known[0] != candidate:
            return f"control's {_told(control)} was paired with candidate's {_told(known[0])}"
        elif other is not None and other != control:
            return f"candidate's {_told(candidate)} was paired with control's {_told(other)}"
        return ""

    def is_paired(self, candidate: str) -> bool:
        return candidate in self._controls

    def spelled(self, control: str, before: int | None = None) -> str | None:
        """The candidate id of a control id, as known from the steps before ``before_step``."""
        known = self._candidates.get(control)
        return known[0] if known and (before is None or known[1] < before) else None

    def translated(self, text: str, before: int) -> str:
        """Replaces the ids of control in a text by those of candidate."""
        if not self._candidates:
            return text
        return IN_TEXT.sub(lambda found: self.spelled(found[0], before) or found[0], text)

    def say_the_same(self, control: str, candidate: str) -> bool:
        """Whether two texts are equal except for ids that are paired."""
        if IN_TEXT.sub("", control) != IN_TEXT.sub("", candidate):
            return False
        ids = zip(IN_TEXT.findall(control), IN_TEXT.findall(candidate), strict=False)
        return len(IN_TEXT.findall(control)) == len(IN_TEXT.findall(candidate)) and all(
            self._is_one(one, other) for one, other in ids
        )

    def takes(self, body: bytes, step: int) -> bool:
        """Pairs each id of a body that both sides sent with itself.

        Returns False, and pairs nothing, if that contradicts an earlier pair.
        """
        if not self.apart:
            return True
        text = body.decode(errors="replace")
        if not all(self._is_one(one, one) for one in IN_TEXT.findall(text)):
            return False
        for one in _WHOLE.findall(text):
            self.pair(one, one, step)
        return True

    def _is_one(self, control: str, candidate: str) -> bool:
        known = self.spelled(control)
        return candidate == (control if known is None else known) and (
            self._controls.get(candidate, control) == control
        )

    @property
    def count(self) -> int:
        return len(self._candidates)

    @property
    def spelled_differently(self) -> int:
        return sum(control != known[0] for control, known in self._candidates.items())


def is_same_id_kind(control: str, candidate: str) -> bool:
    """Whether both are ids of the same kind of object, by their prefix."""
    one, other = ID.fullmatch(control), ID.fullmatch(candidate)
    return one is not None and other is not None and one[1] == other[1]


def _told(name: str) -> str:
    """An id for messages. A rule can make any text an id, so other texts are not shown."""
    return name if ID.fullmatch(name) else "object"
