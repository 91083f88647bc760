"""Maps ids of control to ids of candidate.

Each side has its own ids. Ids at the same path of the two answers name the same object, from then
on everywhere: in paths, queries, bodies and free text. If an id later appears opposite another one,
that is a difference.
"""

from gateway.compare.requests import ID_IN_TEXT, OBJECT_ID


class IdMap:
    """Pairs of ids. Without ``has_separate_ids`` an id is compared like any other text."""

    def __init__(self, *, has_separate_ids: bool = True) -> None:
        self.has_separate_ids = has_separate_ids
        self._candidate_by_control: dict[str, str] = {}
        self._control_by_candidate: dict[str, str] = {}

    def pair(self, control: str, candidate: str) -> str:
        """Pairs two ids. Returns the problem if one is already paired with another; pairs never change."""
        # In both directions: two ids of control for one id of candidate are a mistake too.
        known_candidate = self.find_candidate_id(control)
        known_control = self._control_by_candidate.get(candidate)
        if known_candidate not in (None, candidate):
            return f"control's {_hide_other_text(control)} was paired with candidate's {_hide_other_text(str(known_candidate))}"
        if known_control not in (None, control):
            return f"candidate's {_hide_other_text(candidate)} was paired with control's {_hide_other_text(str(known_control))}"
        self._candidate_by_control[control] = candidate
        self._control_by_candidate[candidate] = control
        return ""

    def is_candidate_id_paired(self, candidate: str) -> bool:
        return candidate in self._control_by_candidate

    def find_candidate_id(self, control: str) -> str | None:
        """Returns the candidate id of a control id, if an answer has shown it."""
        return self._candidate_by_control.get(control)

    def replace_control_ids_in_text(self, text: str) -> str:
        """Replaces the ids of control in a text by those of candidate."""
        return ID_IN_TEXT.sub(lambda match: self.find_candidate_id(match[0]) or match[0], text)

    def are_texts_equal_except_ids(self, control: str, candidate: str) -> bool:
        """Whether two texts are equal except for ids that are paired."""
        control_ids, candidate_ids = ID_IN_TEXT.findall(control), ID_IN_TEXT.findall(candidate)
        # First the text around the ids, then the ids in their order.
        return (
            ID_IN_TEXT.sub("", control) == ID_IN_TEXT.sub("", candidate)
            and len(control_ids) == len(candidate_ids)
            and all(map(self._can_be_same_object, control_ids, candidate_ids))
        )

    def _can_be_same_object(self, control: str, candidate: str) -> bool:
        return candidate == (self.find_candidate_id(control) or control) and (
            self._control_by_candidate.get(candidate, control) == control
        )

    @property
    def count(self) -> int:
        return len(self._candidate_by_control)

    @property
    def different_pair_count(self) -> int:
        return sum(
            control != candidate for control, candidate in self._candidate_by_control.items()
        )


def is_same_id_kind(control: str, candidate: str) -> bool:
    """Whether both are ids of the same kind of object, by their prefix."""
    matches = OBJECT_ID.fullmatch(control), OBJECT_ID.fullmatch(candidate)
    return matches[0] is not None and matches[1] is not None and matches[0][1] == matches[1][1]


def _hide_other_text(name: str) -> str:
    """Returns an id for messages. A rule can make any text an id, so other texts are not shown."""
    return name if OBJECT_ID.fullmatch(name) else "object"
