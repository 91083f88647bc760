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
from gateway.compare.id_map import IdMap, is_same_id_kind
from gateway.compare.operations import ID_IN_TEXT
from gateway.compare.paths import Path
from gateway.compare.rules import Rule, Rules
from gateway.compare.strict_json import ABSENT, JSON, DuplicateKeyObject, Number, describe_json_type
from gateway.compare.tolerance import describe_value_difference, find_tolerating_rule

DifferenceKind = Literal[
    "status", "header", "missing", "extra", "type", "value", "order", "duplicate"
]

KIND_DESCRIPTIONS: Final[dict[DifferenceKind, str]] = {
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

    kind: DifferenceKind
    control_path: Path
    candidate_path: Path
    normal_path: str
    control: Any
    candidate: Any
    note: str = ""
    containers: tuple[JSON, JSON] = (ABSENT, ABSENT)
    index_pairs: tuple[tuple[int, int], ...] = ()
    """For ``order``: the indices of each item in control and in candidate."""


@dataclass(frozen=True, slots=True)
class _Location:
    """A location in both answers: the path in each, and their common normal form."""

    control_path: Path = ()
    candidate_path: Path = ()
    normal_path: str = paths.BODY_PATH

    def descend(self, part: str | int, candidate_part: str | int | None = None) -> _Location:
        other_part = part if candidate_part is None else candidate_part
        return _Location(
            (*self.control_path, part),
            (*self.candidate_path, other_part),
            paths.append_to_path(self.normal_path, part),
        )


class Differ:
    """Compares the answers of one step. ``rule_uses`` counts differences that rules ignored."""

    def __init__(
        self,
        rules: Rules,
        id_map: IdMap,
        *,
        operation: str = "",
        step: int = 0,
        key_order: bool = False,
    ) -> None:
        self._rules = rules
        self._id_map = id_map
        self._operation = operation
        self._step = step
        self._key_order = key_order
        self._differences: list[Difference] = []
        self._texts_with_ids: list[tuple[_Location, str, str, Any]] = []
        self.rule_uses: Counter[Rule] = Counter()

    def compare_answers(self, control: Answer, candidate: Answer) -> list[Difference]:
        if control.status != candidate.status:
            self._add_difference(
                "status",
                _STATUS_LOCATION,
                control.status,
                candidate.status,
                note=describe_error_codes(candidate),
            )
            # The body of an error has no common fields.
            if control.is_success != candidate.is_success:
                return self._differences
        else:
            # Headers are compared only for equal statuses: another status has other headers anyway.
            self._compare_headers(control, candidate)
        return self.compare_bodies(control.body, candidate.body)

    def compare_bodies(self, control: bytes, candidate: bytes) -> list[Difference]:
        # The common case needs no decoding, unless an id in the body is paired with another one.
        if control == candidate and self._id_map.try_pair_ids_with_themselves(control, self._step):
            return self._differences
        control_body, candidate_body = Body(control), Body(candidate)
        if control.startswith(BOM_UTF8) != candidate.startswith(BOM_UTF8):
            self._add_difference(
                "value",
                _Location(),
                control_body.display_value,
                candidate_body.display_value,
                note="starts with a byte order mark",
            )
        if control_body.kind == candidate_body.kind == "JSON":
            return self.compare_values(control_body.value, candidate_body.value)
        if control_body.kind != candidate_body.kind:
            self._add_difference(
                "type",
                _Location(),
                control_body.display_value,
                candidate_body.display_value,
                note=f"{control_body.kind} in control, {candidate_body.kind} in candidate",
            )
        elif control != candidate:
            self._add_difference(
                "value", _Location(), control_body.display_value, candidate_body.display_value
            )
        return self._differences

    def compare_values(self, control: JSON, candidate: JSON) -> list[Difference]:
        self._compare_value(_Location(), control, candidate, (control, candidate))
        for (
            location,
            control_text,
            candidate_text,
            containers,
        ) in self._texts_with_ids:  # now all ids of the answer are paired
            if not self._id_map.are_texts_equal_except_ids(control_text, candidate_text):
                self._add_difference(
                    "value",
                    location,
                    control_text,
                    candidate_text,
                    note=describe_value_difference(control_text, candidate_text),
                    containers=containers,
                )
        return self._differences

    def are_equal(self, normal_path: str, control: JSON, candidate: JSON) -> bool:
        """Whether two values at a path are equal after all rules and id pairs are applied."""
        return self._canonicalize(normal_path, control, is_control=True) == self._canonicalize(
            normal_path, candidate, is_control=False
        )

    def _select_rules(self, location: _Location) -> dict[str, Rule]:
        return cast(
            "dict[str, Rule]",
            self._rules.map_matching_rules_by_kind(self._operation, location.normal_path),
        )

    def _add_difference(
        self,
        kind: DifferenceKind,
        location: _Location,
        control: Any,
        candidate: Any,
        *,
        note: str = "",
        containers: tuple[JSON, JSON] = (ABSENT, ABSENT),
    ) -> None:
        self._differences.append(
            Difference(
                kind,
                location.control_path,
                location.candidate_path,
                location.normal_path,
                control,
                candidate,
                note,
                containers,
            )
        )

    # Headers

    def _compare_headers(self, control: Answer, candidate: Answer) -> None:
        names = sorted({*control.headers, *candidate.headers})
        for name in filter(self._rules.is_compared_header, names):
            control_value, candidate_value = (
                side.headers.get(name, ABSENT) for side in (control, candidate)
            )
            if control_value == candidate_value:
                continue
            location = _build_header_location(name)
            active_rules = self._select_rules(location)
            rule = active_rules.get("ignore")
            if rule is None and control_value is ABSENT:
                rule = active_rules.get("added")
            elif rule is None and candidate_value is not ABSENT:
                rule = active_rules.get("present")
            if rule:
                self.rule_uses[rule] += 1
            else:
                note = (
                    "missing"
                    if candidate_value is ABSENT
                    else "extra"
                    if control_value is ABSENT
                    else ""
                )
                self._add_difference("header", location, control_value, candidate_value, note=note)

    # Values

    def _compare_value(
        self, location: _Location, control: JSON, candidate: JSON, containers: Any
    ) -> None:
        active_rules = self._select_rules(location)
        if rule := active_rules.get("ignore"):
            self.rule_uses[rule] += control != candidate
        # Before the other rules: a client that parses a number fails on a text, whatever its value.
        elif describe_json_type(control) != describe_json_type(candidate):
            note = f"{describe_json_type(control)} in control, {describe_json_type(candidate)} in candidate"
            self._add_difference(
                "type", location, control, candidate, note=note, containers=containers
            )
        elif rule := active_rules.get("present"):
            self.rule_uses[rule] += control != candidate
        elif isinstance(control, dict):
            self._compare_objects(location, control, candidate)
        elif isinstance(control, list):
            self._compare_lists(location, control, candidate, active_rules.get("unordered"))
        elif not self._pair_ids_or_add_difference(
            location, control, candidate, active_rules.get("id"), containers
        ):
            self._compare_scalars(location, control, candidate, active_rules, containers)

    def _compare_scalars(
        self,
        location: _Location,
        control: JSON,
        candidate: JSON,
        active_rules: Any,
        containers: Any,
    ) -> None:
        # Compared at the end: the field that pairs the id may come after the text that quotes it.
        if isinstance(control, str) and "-" in control and ID_IN_TEXT.search(control):
            self._texts_with_ids.append((location, control, candidate, containers))
        elif control == candidate:
            return
        elif rule := find_tolerating_rule(control, candidate, active_rules):
            self.rule_uses[rule] += 1
        else:
            note = describe_value_difference(control, candidate)
            self._add_difference(
                "value", location, control, candidate, note=note, containers=containers
            )

    def _pair_ids_or_add_difference(
        self,
        location: _Location,
        control: JSON,
        candidate: JSON,
        rule: Rule | None,
        containers: Any,
    ) -> bool:
        """Pairs two ids, or adds a difference if that contradicts an earlier pair.

        Returns whether both values are ids.
        """
        if not isinstance(rule, rules.IdRule) or not self._id_map.has_separate_ids:
            return False
        control_id, candidate_id = _parse_identifier(control), _parse_identifier(candidate)
        if (
            control_id is None
            or candidate_id is None
            or not (rule.any_shape or is_same_id_kind(control_id, candidate_id))
        ):
            return False
        if problem := self._id_map.pair(control_id, candidate_id, self._step):
            self._add_difference(
                "value", location, control, candidate, note=problem, containers=containers
            )
        else:
            self.rule_uses[rule] += control_id != candidate_id
        return True

    def _compare_objects(
        self, location: _Location, control: dict[str, JSON], candidate: dict[str, JSON]
    ) -> None:
        containers = (control, candidate)
        duplicate_keys = (
            _map_duplicate_values_by_key(control).keys()
            | _map_duplicate_values_by_key(candidate).keys()
        )
        # Parsers use the last of duplicate keys, which is compared below; here are the earlier
        # ones.
        for key in (
            [key for key in control if key in candidate and key in duplicate_keys]
            if duplicate_keys
            else ()
        ):
            self._compare_duplicates(location.descend(key), control, candidate, key)
        for key, value in control.items():
            field_location = location.descend(key)
            if key in candidate:
                self._compare_value(field_location, value, candidate[key], containers)
            elif rule := self._select_rules(field_location).get("ignore"):
                self.rule_uses[rule] += 1
            else:
                self._add_difference(
                    "missing", field_location, value, ABSENT, containers=containers
                )
        for key in [key for key in candidate if key not in control]:
            field_location = location.descend(key)
            active_rules = self._select_rules(field_location)
            if rule := active_rules.get("ignore") or active_rules.get("added"):
                self.rule_uses[rule] += 1
            else:
                self._add_difference(
                    "extra", field_location, ABSENT, candidate[key], containers=containers
                )
        if self._key_order and [k for k in control if k in candidate] != [
            k for k in candidate if k in control
        ]:
            self._add_difference(
                "order", location, control, candidate, note="order of keys", containers=containers
            )

    def _compare_duplicates(
        self, location: _Location, control: JSON, candidate: JSON, key: str
    ) -> None:
        control_values = _map_duplicate_values_by_key(control).get(key, [control[key]])
        candidate_values = _map_duplicate_values_by_key(candidate).get(key, [candidate[key]])
        containers = (control, candidate)
        if len(control_values) == len(
            candidate_values
        ):  # the last of each is compared with the other fields
            for earlier_values in zip(control_values[:-1], candidate_values[:-1], strict=True):
                self._compare_value(location, *earlier_values, containers)
        elif "ignore" not in self._select_rules(location):
            note = f"{len(control_values)} times in control, {len(candidate_values)} times in candidate"
            self._add_difference(
                "duplicate",
                location,
                control_values,
                candidate_values,
                note=note,
                containers=containers,
            )

    # Lists

    def _compare_lists(
        self, location: _Location, control: list[JSON], candidate: list[JSON], rule: Rule | None
    ) -> None:
        key = rule.key if isinstance(rule, rules.UnorderedRule) else ""
        item_path = paths.append_to_path(location.normal_path, 0)
        alignment = align(
            [self._build_item(item_path, value, key, is_control=True) for value in control],
            [self._build_item(item_path, value, key, is_control=False) for value in candidate],
        )
        # One finding for the list instead of a difference in each moved item.
        if not alignment.in_order:
            if rule:
                self.rule_uses[rule] += 1
            else:
                self._add_order_difference(location, control, candidate, alignment.pairs)
        for control_index, candidate_index in alignment.pairs:
            containers = (control, candidate)
            self._compare_value(
                location.descend(control_index, candidate_index),
                control[control_index],
                candidate[candidate_index],
                containers,
            )
        for index in alignment.missing:
            self._add_unmatched_item("missing", location.descend(index), control[index], ABSENT)
        for index in alignment.extra:
            self._add_unmatched_item("extra", location.descend(index), ABSENT, candidate[index])

    def _add_order_difference(
        self, location: _Location, control: JSON, candidate: JSON, pairs: list[tuple[int, int]]
    ) -> None:
        moved_count = sum(
            control_index != candidate_index for control_index, candidate_index in pairs
        )
        note = f"{moved_count} of {len(pairs)} items at a different index"
        self._add_difference("order", location, control, candidate, note=note)
        self._differences[-1] = replace(self._differences[-1], index_pairs=tuple(pairs))

    def _add_unmatched_item(
        self, kind: Literal["missing", "extra"], location: _Location, control: Any, candidate: Any
    ) -> None:
        active_rules = self._select_rules(location)
        rule = active_rules.get("ignore") or (
            active_rules.get("added") if kind == "extra" else None
        )
        if rule:
            self.rule_uses[rule] += 1
        else:
            self._add_difference(kind, location, control, candidate)

    def _build_item(self, normal_path: str, value: JSON, key: str, *, is_control: bool) -> Item:
        content = self._canonicalize(normal_path, value, is_control=is_control)
        identifier = _parse_identifier(_select_nested_value(value, key or "id"))
        # Without a key in the rule, only objects have an identifier: their `id`.
        if identifier is None or not (key or isinstance(value, dict)):
            return Item(None, False, content, _build_similarity_features(content))
        # Translated, so that both sides identify an object by candidate's id.
        candidate_id = self._id_map.find_candidate_id(identifier) if is_control else identifier
        return Item(
            candidate_id or identifier,
            candidate_id in (None, identifier),
            content,
            _build_similarity_features(content),
        )

    def _canonicalize(self, normal_path: str, value: JSON, *, is_control: bool) -> Hashable:
        """Returns a hashable form of a value, without parts that may differ in equal answers."""
        active_rules = self._rules.map_matching_rules_by_kind(self._operation, normal_path)
        if "ignore" in active_rules:
            return None
        # Values under these rules may differ, so that only their type counts.
        if not {"present", "time", "number"}.isdisjoint(active_rules):
            return describe_json_type(value)
        if isinstance(value, dict):
            return frozenset(
                (
                    key,
                    self._canonicalize(
                        paths.append_to_path(normal_path, key), item, is_control=is_control
                    ),
                )
                for key, item in value.items()
            )
        if isinstance(value, list):
            item_path = paths.append_to_path(normal_path, 0)
            return tuple(
                self._canonicalize(item_path, item, is_control=is_control) for item in value
            )
        if isinstance(value, str) and self._id_map.has_separate_ids:
            if isinstance(rule := active_rules.get("id"), rules.IdRule) and rule.any_shape:
                return self._normalize_to_candidate_id(value, is_control=is_control)
            if "-" in value:
                return ID_IN_TEXT.sub(
                    lambda match: self._normalize_to_candidate_id(match[0], is_control=is_control),
                    value,
                )
        return (describe_json_type(value), value)

    def _normalize_to_candidate_id(self, id_: str, *, is_control: bool) -> str:
        # Unknown ids become "?" on both sides: items that differ only in new ids are the same item.
        if is_control:
            return self._id_map.find_candidate_id(id_) or "?"
        return id_ if self._id_map.is_candidate_id_paired(id_) else "?"


_STATUS_LOCATION = _Location(
    paths.STATUS_PATH, paths.STATUS_PATH, paths.format_path(paths.STATUS_PATH)
)


def _build_header_location(name: str) -> _Location:
    path = paths.build_header_path(name)
    return _Location(path, path, paths.format_path(path))


def _map_duplicate_values_by_key(value: dict[str, JSON]) -> dict[str, list[JSON]]:
    return value.again if isinstance(value, DuplicateKeyObject) else {}


def _parse_identifier(value: JSON) -> str | None:
    """Returns a value that can identify an object: a text, or the text of a number; else None."""
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) and value else None


def _select_nested_value(value: JSON, key: str) -> JSON:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _build_similarity_features(content: Hashable) -> frozenset[Hashable]:
    """Returns the parts of a canonical value and their keys, because equal keys are similar."""
    if isinstance(content, frozenset):
        return content | {key for key, _ in content}
    return frozenset((content, type(content)))
