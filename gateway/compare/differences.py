"""Compares two answers and lists their differences by kind."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from gateway.compare import paths, rules
from gateway.compare.alignment import Item, align
from gateway.compare.answer import Answer, Body, describe_error_codes
from gateway.compare.id_map import Pairing, is_same_id_kind
from gateway.compare.operations import IN_TEXT
from gateway.compare.paths import Path
from gateway.compare.rules import Rule, Rules
from gateway.compare.strict_json import ABSENT, JSON, Doubled, Number, describe_json_type
from gateway.compare.tolerance import find_tolerance, in_words

Kind = Literal["status", "header", "missing", "extra", "type", "value", "order", "duplicate"]

KINDS: Final[dict[Kind, str]] = {
    "status": "the HTTP status differs",
    "header": "a compared header differs, is missing or is extra",
    "missing": "control has it, candidate does not",
    "extra": "candidate has it, control does not",
    "type": "both have it, with different JSON types",
    "value": "the same type with different values",
    "order": "the same items in a different order",
    "duplicate": "an object of one side has a duplicate key",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. The paths of the two sides differ if list items moved.

    ``containers`` are the enclosing objects of both sides, to show the fields around it.
    """

    kind: Kind
    path: Path
    there: Path
    place: str
    control: Any
    candidate: Any
    note: str = ""
    within: tuple[JSON, JSON] = (ABSENT, ABSENT)
    moves: tuple[tuple[int, int], ...] = ()
    """For ``order``: the indices of each item in control and in candidate."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """A location in both answers: the path in each, and their common normal form."""

    path: Path = ()
    there: Path = ()
    place: str = paths.BODY

    def below(self, part: str | int, there: str | int | None = None) -> _Spot:
        other = part if there is None else there
        return _Spot(
            (*self.path, part), (*self.there, other), paths.append_to_path(self.place, part)
        )


class Differ:
    """Compares the answers of one step. ``rule_uses`` counts differences that rules ignored."""

    def __init__(
        self,
        rules: Rules,
        pairing: Pairing,
        *,
        operation: str = "",
        step: int = 0,
        key_order: bool = False,
    ) -> None:
        self._rules = rules
        self._pairing = pairing
        self._operation = operation
        self._step = step
        self._key_order = key_order
        self._found: list[Difference] = []
        self._mentions: list[tuple[_Spot, str, str, Any]] = []
        self.excused: Counter[Rule] = Counter()

    def answers(self, control: Answer, candidate: Answer) -> list[Difference]:
        if control.status != candidate.status:
            self._add(
                "status",
                _STATUS,
                control.status,
                candidate.status,
                note=describe_error_codes(candidate),
            )
            if control.is_good != candidate.is_good:  # the body of an error has no common fields
                return self._found
        else:
            self._headers(control, candidate)
        return self.bodies(control.body, candidate.body)

    def bodies(self, control: bytes, candidate: bytes) -> list[Difference]:
        if control == candidate and self._pairing.takes(control, self._step):
            return self._found
        one, other = Body(control), Body(candidate)
        if control.startswith(BOM_UTF8) != candidate.startswith(BOM_UTF8):
            self._add(
                "value", _Spot(), one.shown, other.shown, note="starts with a byte order mark"
            )
        if one.kind == other.kind == "JSON":
            return self.values(one.value, other.value)
        if one.kind != other.kind:
            self._add(
                "type",
                _Spot(),
                one.shown,
                other.shown,
                note=f"{one.kind} in control, {other.kind} in candidate",
            )
        elif control != candidate:
            self._add("value", _Spot(), one.shown, other.shown)
        return self._found

    def values(self, control: JSON, candidate: JSON) -> list[Difference]:
        self._values(_Spot(), control, candidate, (control, candidate))
        for spot, one, other, within in self._mentions:  # now all ids of the answer are paired
            if not self._pairing.say_the_same(one, other):
                self._add("value", spot, one, other, note=in_words(one, other), within=within)
        return self._found

    def are_alike(self, place: str, control: JSON, candidate: JSON) -> bool:
        """Whether two values at a path are equal after all rules and id pairs are applied."""
        return self._look(place, control, is_control=True) == self._look(
            place, candidate, is_control=False
        )

    def _at(self, spot: _Spot) -> dict[str, Rule]:
        return cast("dict[str, Rule]", self._rules.at(self._operation, spot.place))

    def _add(
        self,
        kind: Kind,
        spot: _Spot,
        control: Any,
        candidate: Any,
        *,
        note: str = "",
        within: tuple[JSON, JSON] = (ABSENT, ABSENT),
    ) -> None:
        self._found.append(
            Difference(kind, spot.path, spot.there, spot.place, control, candidate, note, within)
        )

    # Headers

    def _headers(self, control: Answer, candidate: Answer) -> None:
        names = sorted({*control.headers, *candidate.headers})
        for name in filter(self._rules.matters, names):
            one, other = (side.headers.get(name, ABSENT) for side in (control, candidate))
            if one == other:
                continue
            spot = _header_spot(name)
            applying = self._at(spot)
            rule = applying.get("ignore")
            if rule is None and one is ABSENT:
                rule = applying.get("added")
            elif rule is None and other is not ABSENT:
                rule = applying.get("present")
            if rule:
                self.excused[rule] += 1
            else:
                note = "missing" if other is ABSENT else "extra" if one is ABSENT else ""
                self._add("header", spot, one, other, note=note)

    # Values

    def _values(self, spot: _Spot, control: JSON, candidate: JSON, within: Any) -> None:
        applying = self._at(spot)
        if rule := applying.get("ignore"):
            self.excused[rule] += control != candidate
        elif describe_json_type(control) != describe_json_type(candidate):
            note = f"{describe_json_type(control)} in control, {describe_json_type(candidate)} in candidate"
            self._add("type", spot, control, candidate, note=note, within=within)
        elif rule := applying.get("present"):
            self.excused[rule] += control != candidate
        elif isinstance(control, dict):
            self._objects(spot, control, candidate)
        elif isinstance(control, list):
            self._lists(spot, control, candidate, applying.get("unordered"))
        elif not self._are_one_id(spot, control, candidate, applying.get("id"), within):
            self._leaves(spot, control, candidate, applying, within)

    def _leaves(
        self, spot: _Spot, control: JSON, candidate: JSON, applying: Any, within: Any
    ) -> None:
        if isinstance(control, str) and "-" in control and IN_TEXT.search(control):
            self._mentions.append((spot, control, candidate, within))
        elif control == candidate:
            return
        elif rule := find_tolerance(control, candidate, applying):
            self.excused[rule] += 1
        else:
            note = in_words(control, candidate)
            self._add("value", spot, control, candidate, note=note, within=within)

    def _are_one_id(
        self, spot: _Spot, control: JSON, candidate: JSON, rule: Rule | None, within: Any
    ) -> bool:
        """Pairs two ids, or adds a difference if that contradicts an earlier pair.

        Returns whether both values are ids.
        """
        if not isinstance(rule, rules.Id) or not self._pairing.apart:
            return False
        one, other = _name(control), _name(candidate)
        if one is None or other is None or not (rule.any_shape or is_same_id_kind(one, other)):
            return False
        if wrong := self._pairing.pair(one, other, self._step):
            self._add("value", spot, control, candidate, note=wrong, within=within)
        else:
            self.excused[rule] += one != other
        return True

    def _objects(self, spot: _Spot, control: dict[str, JSON], candidate: dict[str, JSON]) -> None:
        within = (control, candidate)
        twice = _again(control).keys() | _again(candidate).keys()
        for key in [key for key in control if key in candidate and key in twice] if twice else ():
            self._doubled(spot.below(key), control, candidate, key)
        for key, value in control.items():
            below = spot.below(key)
            if key in candidate:
                self._values(below, value, candidate[key], within)
            elif rule := self._at(below).get("ignore"):
                self.excused[rule] += 1
            else:
                self._add("missing", below, value, ABSENT, within=within)
        for key in [key for key in candidate if key not in control]:
            below = spot.below(key)
            applying = self._at(below)
            if rule := applying.get("ignore") or applying.get("added"):
                self.excused[rule] += 1
            else:
                self._add("extra", below, ABSENT, candidate[key], within=within)
        if self._key_order and [k for k in control if k in candidate] != [
            k for k in candidate if k in control
        ]:
            self._add("order", spot, control, candidate, note="order of keys", within=within)

    def _doubled(self, spot: _Spot, control: JSON, candidate: JSON, key: str) -> None:
        one = _again(control).get(key, [control[key]])
        other = _again(candidate).get(key, [candidate[key]])
        within = (control, candidate)
        if len(one) == len(other):  # the last of each is compared with the other fields
            for earlier in zip(one[:-1], other[:-1], strict=True):
                self._values(spot, *earlier, within)
        elif "ignore" not in self._at(spot):
            note = f"{len(one)} times in control, {len(other)} times in candidate"
            self._add("duplicate", spot, one, other, note=note, within=within)

    # Lists

    def _lists(
        self, spot: _Spot, control: list[JSON], candidate: list[JSON], rule: Rule | None
    ) -> None:
        key = rule.key if isinstance(rule, rules.Unordered) else ""
        below = paths.append_to_path(spot.place, 0)
        found = align(
            [self._item(below, value, key, is_control=True) for value in control],
            [self._item(below, value, key, is_control=False) for value in candidate],
        )
        if not found.in_order:
            if rule:
                self.excused[rule] += 1
            else:
                self._moved(spot, control, candidate, found.pairs)
        for one, other in found.pairs:
            within = (control, candidate)
            self._values(spot.below(one, other), control[one], candidate[other], within)
        for index in found.missing:
            self._alone("missing", spot.below(index), control[index], ABSENT)
        for index in found.extra:
            self._alone("extra", spot.below(index), ABSENT, candidate[index])

    def _moved(
        self, spot: _Spot, control: JSON, candidate: JSON, pairs: list[tuple[int, int]]
    ) -> None:
        off = sum(one != other for one, other in pairs)
        note = f"{off} of {len(pairs)} items at a different index"
        self._add("order", spot, control, candidate, note=note)
        self._found[-1] = replace(self._found[-1], moves=tuple(pairs))

    def _alone(self, kind: Literal["missing", "extra"], spot: _Spot, one: Any, other: Any) -> None:
        applying = self._at(spot)
        rule = applying.get("ignore") or (applying.get("added") if kind == "extra" else None)
        if rule:
            self.excused[rule] += 1
        else:
            self._add(kind, spot, one, other)

    def _item(self, place: str, value: JSON, key: str, *, is_control: bool) -> Item:
        look = self._look(place, value, is_control=is_control)
        name = _name(_under(value, key or "id"))
        if name is None or not (key or isinstance(value, dict)):
            return Item(None, False, look, _leaves_of(look))
        spelled = self._pairing.spelled(name) if is_control else name
        return Item(spelled or name, spelled in (None, name), look, _leaves_of(look))

    def _look(self, place: str, value: JSON, *, is_control: bool) -> Hashable:
        """A hashable form of a value, without the parts that may differ between equal answers."""
        applying = self._rules.at(self._operation, place)
        if "ignore" in applying:
            return None
        if not {"present", "time", "number"}.isdisjoint(applying):
            return describe_json_type(value)
        if isinstance(value, dict):
            return frozenset(
                (key, self._look(paths.append_to_path(place, key), item, is_control=is_control))
                for key, item in value.items()
            )
        if isinstance(value, list):
            items = paths.append_to_path(place, 0)
            return tuple(self._look(items, item, is_control=is_control) for item in value)
        if isinstance(value, str) and self._pairing.apart:
            if isinstance(rule := applying.get("id"), rules.Id) and rule.any_shape:
                return self._paired(value, is_control=is_control)
            if "-" in value:
                return IN_TEXT.sub(
                    lambda found: self._paired(found[0], is_control=is_control), value
                )
        return (describe_json_type(value), value)

    def _paired(self, id_: str, *, is_control: bool) -> str:
        # Unknown ids become "?" on both sides: items that differ only in new ids are the same item.
        if is_control:
            return self._pairing.spelled(id_) or "?"
        return id_ if self._pairing.is_paired(id_) else "?"


_STATUS = _Spot(paths.STATUS, paths.STATUS, paths.format_path(paths.STATUS))


def _header_spot(name: str) -> _Spot:
    path = paths.header_path(name)
    return _Spot(path, path, paths.format_path(path))


def _again(value: dict[str, JSON]) -> dict[str, list[JSON]]:
    return value.again if isinstance(value, Doubled) else {}


def _name(value: JSON) -> str | None:
    """A value that can identify an object: a text, or the text of a number; else None."""
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) and value else None


def _under(value: JSON, key: str) -> JSON:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _leaves_of(look: Hashable) -> frozenset[Hashable]:
    """The parts of a canonical value and their keys: objects with the same keys are similar."""
    if isinstance(look, frozenset):
        return look | {key for key, _ in look}
    return frozenset((look, type(look)))
