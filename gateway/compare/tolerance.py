"""Tolerances of rules, and notes on differences that are hard to see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Context, Decimal

from gateway.compare import rules
from gateway.compare.rules import Rule
from gateway.compare.strict_json import JSON, Number

# More digits than any amount has, so that a subtraction is exact.
_CONTEXT = Context(prec=400)


_DECIMAL_TEXT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""``Decimal`` accepts more: non-ASCII digits, ``1_000``, white space, ``sNaN``."""


def _parse_decimal(value: JSON) -> Decimal | None:
    text = value.text if isinstance(value, Number) else value
    if not isinstance(text, str) or not _DECIMAL_TEXT.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except ArithmeticError:
        return None


def find_tolerating_rule(
    control: JSON, candidate: JSON, active_rules: Mapping[str, Rule]
) -> Rule | None:
    """Returns the rule within whose tolerance two values are equal, if any."""
    rule = active_rules.get("time")
    if rule and _is_within_time_tolerance(control, candidate, rule):
        return rule
    rule = active_rules.get("number")
    return rule if rule and _is_within_number_tolerance(control, candidate, rule) else None


def _is_within_number_tolerance(control: JSON, candidate: JSON, rule: Rule) -> bool:
    control_number, candidate_number = _parse_decimal(control), _parse_decimal(candidate)
    if control_number is None or candidate_number is None or not isinstance(rule, rules.NumberRule):
        return False
    try:
        # Not the default context, which rounds to 28 digits and could make two amounts equal.
        return abs(_CONTEXT.subtract(control_number, candidate_number)) <= rule.tolerance
    except ArithmeticError:
        return False


def _is_within_time_tolerance(control: JSON, candidate: JSON, rule: Rule) -> bool:
    """Whether two times are close enough and have the same format.

    The format must match because clients parse it.
    """
    if not isinstance(rule, rules.TimeRule) or _replace_digits(control) != _replace_digits(
        candidate
    ):
        return False
    try:
        control_time, candidate_time = (
            datetime.fromisoformat(control),
            datetime.fromisoformat(candidate),
        )
        return abs((control_time - candidate_time).total_seconds()) <= rule.seconds
    except (TypeError, ValueError):
        return False


def _replace_digits(value: JSON) -> str:
    return "".join("9" if char.isdigit() else char for char in str(value))


def describe_value_difference(control: JSON, candidate: JSON) -> str:
    """Returns a note on how two values differ, if that is hard to see or masked; else empty."""
    if isinstance(control, Number):
        is_same_number = _parse_decimal(control) == _parse_decimal(candidate)
        return "the same number, formatted differently" if is_same_number else ""
    if not isinstance(control, str):
        return ""
    if "".join(control.split()) == "".join(candidate.split()):
        return "only white space differs"
    if control.casefold() == candidate.casefold():
        return "only letter case differs"
    control_number, candidate_number = _parse_decimal(control), _parse_decimal(candidate)
    if control_number is not None and control_number == candidate_number:
        return "the same number, formatted differently"
    return ""
