"""Compares two answers and lists their differences by kind."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from gateway.compare import paths
from gateway.compare.alignment import Item, align
from gateway.compare.endpoints import Answer
from gateway.compare.id_map import IdMap, is_same_id_kind
from gateway.compare.masking import is_public_text
from gateway.compare.paths import Path
from gateway.compare.requests import ID_IN_TEXT
from gateway.compare.rules import IdRule, Rule, Rules, UnorderedRule, parse_decimal
from gateway.compare.strict_json import (
    ABSENT,
    JSON,
    InvalidJson,
    Number,
    describe_json_type,
    loads_strict,
)

DifferenceKind = Literal["status", "header", "missing", "extra", "type", "value", "order"]

KIND_DESCRIPTIONS: Final[dict[DifferenceKind, str]] = {
    "status": "the HTTP status differs",
    "header": "a compared header differs, is missing or is extra",
    "missing": "control has it, candidate does not",
    "extra": "candidate has it, control does not",
    "type": "both have it, with different JSON types",
    "value": "the same type with different values",
    "order": "the same items in a different order",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. The paths of the two sides differ if list items moved.

    ``item_id`` is control's id of the innermost list item with an id; of an extra item, candidate's.
    """

    kind: DifferenceKind
    control_path: Path
    candidate_path: Path
    normal_path: str
    control: Any
    candidate: Any
    note: str = ""
    item_id: str = ""


@dataclass(frozen=True, slots=True)
class _Location:
    """A place in both answers: the path in each, and their common normal form."""

    control_path: Path = ()
    candidate_path: Path = ()
    normal_path: str = paths.BODY_PATH
    item_id: str = ""

    def descend(
        self, part: str | int, candidate_part: int | None = None, *, item: JSON = None
    ) -> _Location:
        other_part = part if candidate_part is None else candidate_part
        return _Location(
            (*self.control_path, part),
            (*self.candidate_path, other_part),
            paths.append_to_path(self.normal_path, part),
            _parse_identifier(_select_nested_value(item, "id")) or self.item_id,
        )


def _build_flat_location(path: Path) -> _Location:
    return _Location(path, path, paths.format_path(path))


class Differ:
    """Compares the answers of one step. ``rule_uses`` counts differences that rules ignored."""

    def __init__(self, rules: Rules, id_map: IdMap, *, operation: str = "") -> None:
        self._rules = rules
        self._id_map = id_map
        self._operation = operation
        self._differences: list[Difference] = []
        self._texts_with_ids: list[tuple[_Location, str, str]] = []
        self.rule_uses: Counter[Rule] = Counter()

    def compare_answers(self, control: Answer, candidate: Answer) -> list[Difference]:
        if control.status != candidate.status:
            location, note = _build_flat_location(paths.STATUS_PATH), _describe_error(candidate)
            self._add("status", location, control.status, candidate.status, note=note)
            # The body of an error has no common fields.
            if control.is_success != candidate.is_success:
                return self._differences
        else:
            # Headers are compared only for equal statuses: another status has other headers anyway.
            self._compare_headers(control, candidate)
        return self.compare_bodies(control.body, candidate.body)

    def compare_bodies(self, control: bytes, candidate: bytes) -> list[Difference]:
        (control_form, control_value), (candidate_form, candidate_value) = map(
            _decode_body, (control, candidate)
        )
        both = _Location(), control_value, candidate_value
        if control.startswith(BOM_UTF8) != candidate.startswith(BOM_UTF8):
            self._add("value", *both, note="starts with a byte order mark")
        if control_form != candidate_form:
            note = f"{control_form} in control, {candidate_form} in candidate"
            self._add("type", *both, note=note)
        elif control_form == "JSON":
            self._compare_value(*both)
            # Now all ids of the answer are paired.
            for location, *texts in self._texts_with_ids:
                if not self._id_map.are_texts_equal_except_ids(*texts):
                    self._add("value", location, *texts, note=_describe_value_difference(*texts))
        elif control != candidate:
            self._add("value", *both)
        return self._differences

    def _add(
        self,
        kind: DifferenceKind,
        location: _Location,
        control: Any,
        candidate: Any,
        *,
        note: str = "",
    ) -> None:
        places = (location.control_path, location.candidate_path, location.normal_path)
        self._differences.append(
            Difference(kind, *places, control, candidate, note, location.item_id)
        )

    def _select_rules(self, location: _Location) -> Mapping[str, Rule]:
        return self._rules.map_matching_rules_by_kind(self._operation, location.normal_path)

    def _compare_headers(self, control: Answer, candidate: Answer) -> None:
        names = sorted({*control.headers, *candidate.headers})
        for name in filter(self._rules.is_compared_header, names):
            values = [side.headers.get(name, ABSENT) for side in (control, candidate)]
            if values[0] == values[1]:
                continue
            location = _build_flat_location(paths.build_header_path(name))
            note, kind = "", "present"
            if values[0] is ABSENT:
                note, kind = "extra", "added"
            elif values[1] is ABSENT:
                note, kind = "missing", ""
            active_rules = self._select_rules(location)
            if rule := active_rules.get("ignore") or active_rules.get(kind):
                self.rule_uses[rule] += 1
            else:
                self._add("header", location, *values, note=note)

    def _compare_value(self, location: _Location, control: JSON, candidate: JSON) -> None:
        active_rules = self._select_rules(location)
        types = describe_json_type(control), describe_json_type(candidate)
        if rule := active_rules.get("ignore"):
            self.rule_uses[rule] += control != candidate
        # Before the other rules: a client that parses a number fails on a text, whatever its value.
        elif types[0] != types[1]:
            note = f"{types[0]} in control, {types[1]} in candidate"
            self._add("type", location, control, candidate, note=note)
        elif rule := active_rules.get("present"):
            self.rule_uses[rule] += control != candidate
        elif isinstance(control, dict):
            self._compare_objects(location, control, candidate)
        elif isinstance(control, list):
            self._compare_lists(location, control, candidate, active_rules.get("unordered"))
        elif not self._pair_ids(location, control, candidate, active_rules.get("id")):
            self._compare_scalars(location, control, candidate, active_rules)

    def _compare_scalars(
        self, location: _Location, control: JSON, candidate: JSON, active_rules: Mapping[str, Rule]
    ) -> None:
        # Compared at the end: the field that pairs the id may come after the text that quotes it.
        if isinstance(control, str) and "-" in control and ID_IN_TEXT.search(control):
            self._texts_with_ids.append((location, control, candidate))
        elif control != candidate:
            for rule in active_rules.values():
                if rule.tolerates(control, candidate):
                    self.rule_uses[rule] += 1
                    return
            note = _describe_value_difference(control, candidate)
            self._add("value", location, control, candidate, note=note)

    def _pair_ids(
        self, location: _Location, control: JSON, candidate: JSON, rule: Rule | None
    ) -> bool:
        """Pairs two ids, or adds a difference if that contradicts an earlier pair.

        Returns whether both values are ids.
        """
        ids = _parse_identifier(control), _parse_identifier(candidate)
        if not isinstance(rule, IdRule) or not self._id_map.has_separate_ids or None in ids:
            return False
        control_id, candidate_id = map(str, ids)
        if not (rule.any_shape or is_same_id_kind(control_id, candidate_id)):
            return False
        if problem := self._id_map.pair(control_id, candidate_id):
            self._add("value", location, control, candidate, note=problem)
        else:
            self.rule_uses[rule] += control_id != candidate_id
        return True

    def _compare_objects(
        self, location: _Location, control: dict[str, JSON], candidate: dict[str, JSON]
    ) -> None:
        for key, value in control.items():
            field_location = location.descend(key)
            if key in candidate:
                self._compare_value(field_location, value, candidate[key])
            else:
                self._add_unmatched("missing", field_location, value, ABSENT)
        for key, value in candidate.items():
            if key not in control:
                self._add_unmatched("extra", location.descend(key), ABSENT, value)

    def _compare_lists(
        self, location: _Location, control: list[JSON], candidate: list[JSON], rule: Rule | None
    ) -> None:
        key = rule.key if isinstance(rule, UnorderedRule) else ""
        item_path = paths.append_to_path(location.normal_path, 0)
        alignment = align(
            [self._build_item(item_path, value, key, is_control=True) for value in control],
            [self._build_item(item_path, value, key, is_control=False) for value in candidate],
        )
        # One finding for the list instead of a difference in each moved item.
        if not alignment.is_in_order and rule:
            self.rule_uses[rule] += 1
        elif not alignment.is_in_order:
            moved_count = sum(i != j for i, j in alignment.pairs)
            note = f"{moved_count} of {len(alignment.pairs)} items at a different index"
            self._add("order", location, control, candidate, note=note)
        for i, j in alignment.pairs:
            self._compare_value(location.descend(i, j, item=control[i]), control[i], candidate[j])
        for i in alignment.missing:
            place = location.descend(i, item=control[i])
            self._add_unmatched("missing", place, control[i], ABSENT)
        for j in alignment.extra:
            place = location.descend(j, item=candidate[j])
            self._add_unmatched("extra", place, ABSENT, candidate[j])

    def _add_unmatched(
        self, kind: Literal["missing", "extra"], location: _Location, control: Any, candidate: Any
    ) -> None:
        active_rules = self._select_rules(location)
        rule = active_rules.get("ignore")
        if kind == "extra":
            rule = rule or active_rules.get("added")
        if rule:
            self.rule_uses[rule] += 1
        else:
            self._add(kind, location, control, candidate)

    def _build_item(self, normal_path: str, value: JSON, key: str, *, is_control: bool) -> Item:
        content = self._canonicalize(normal_path, value, is_control=is_control)
        identifier = _parse_identifier(_select_nested_value(value, key or "id"))
        # Translated, so that both sides identify an object by candidate's id.
        paired_id = identifier
        if is_control and identifier:
            paired_id = self._id_map.find_candidate_id(identifier)
        return Item(paired_id or identifier, paired_id in (None, identifier), content)

    def _canonicalize(self, normal_path: str, value: JSON, *, is_control: bool) -> Hashable:
        """Returns a hashable form of a value, without parts that may differ in equal answers."""
        active_rules = self._rules.map_matching_rules_by_kind(self._operation, normal_path)
        if "ignore" in active_rules:
            return None
        # Values under these rules may differ, so that only their type counts.
        if not {"present", "time", "number"}.isdisjoint(active_rules):
            return describe_json_type(value)
        if isinstance(value, dict):
            places = [(key, paths.append_to_path(normal_path, key)) for key in value]
            return frozenset(
                (key, self._canonicalize(place, value[key], is_control=is_control))
                for key, place in places
            )
        if isinstance(value, list):
            item_path = paths.append_to_path(normal_path, 0)
            return tuple(
                self._canonicalize(item_path, item, is_control=is_control) for item in value
            )
        if isinstance(value, str) and self._id_map.has_separate_ids:
            if isinstance(rule := active_rules.get("id"), IdRule) and rule.any_shape:
                return self._normalize_to_candidate_id(value, is_control=is_control)
            if "-" in value:
                normalize = partial(self._normalize_to_candidate_id, is_control=is_control)
                return ID_IN_TEXT.sub(lambda match: normalize(match[0]), value)
        return (describe_json_type(value), value)

    def _normalize_to_candidate_id(self, id_: str, *, is_control: bool) -> str:
        # Unknown ids become "?" on both sides: items that differ only in new ids are the same item.
        if is_control:
            return self._id_map.find_candidate_id(id_) or "?"
        return id_ if self._id_map.is_candidate_id_paired(id_) else "?"


def _decode_body(data: bytes) -> tuple[str, JSON]:
    """Returns what a body is, and its JSON value or its text."""
    if not data:
        return "no body", ABSENT
    try:
        return "JSON", loads_strict(data)
    except InvalidJson:
        return "not JSON", data.decode(errors="replace")


def _describe_error(answer: Answer) -> str:
    """Returns the error codes of an error response, as a note; empty for a success.

    A code says more than the status. Messages are left out: they may quote personal data.
    """
    _, body = _decode_body(answer.body)
    errors = body.get("errors") if isinstance(body, dict) else None
    errors = errors if isinstance(errors, list) else []
    values = (error.get("code") for error in errors if isinstance(error, dict))
    codes = [value for value in values if isinstance(value, str) and value]
    codes = [code for code in codes if is_public_text(("code",), code)]
    return f"candidate says {', '.join(codes[:3])}" if codes and not answer.is_success else ""


def _describe_value_difference(control: JSON, candidate: JSON) -> str:
    """Returns a note on how two values differ, if that is hard to see or masked; else empty."""
    if isinstance(control, str):
        if "".join(control.split()) == "".join(candidate.split()):
            return "only white space differs"
        if control.casefold() == candidate.casefold():
            return "only letter case differs"
    number = parse_decimal(control)
    is_same_number = number is not None and number == parse_decimal(candidate)
    return "the same number, formatted differently" if is_same_number else ""


def _parse_identifier(value: JSON) -> str | None:
    """Returns a value that can identify an object: a text, or the text of a number; else None."""
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) and value else None


def _select_nested_value(value: JSON, key: str) -> JSON:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
