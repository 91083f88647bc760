"""Tolerances of rules, and notes on differences that are hard to see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Context, Decimal

from gateway.compare import rules
from gateway.compare.rules import Rule
from gateway.compare.strict_json import JSON, Number

_PRECISION = Context(prec=400)


_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""``Decimal`` accepts more: non-ASCII digits, ``1_000``, white space, ``sNaN``."""


def _decimal(value: JSON) -> Decimal | None:
    text = value.text if isinstance(value, Number) else value
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except ArithmeticError:
        return None


def find_tolerance(control: JSON, candidate: JSON, applying: Mapping[str, Rule]) -> Rule | None:
    """The rule within whose tolerance two values are equal, if any."""
    rule = applying.get("time")
    if rule and _close_in_time(control, candidate, rule):
        return rule
    rule = applying.get("number")
    return rule if rule and _close(control, candidate, rule) else None


def _close(control: JSON, candidate: JSON, rule: Rule) -> bool:
    one, other = _decimal(control), _decimal(candidate)
    if one is None or other is None or not isinstance(rule, rules.Number):
        return False
    try:
        return abs(_PRECISION.subtract(one, other)) <= rule.tolerance
    except ArithmeticError:
        return False


def _close_in_time(control: JSON, candidate: JSON, rule: Rule) -> bool:
    """Whether two times are close enough and have the same format.

    The format must match because clients parse it.
    """
    if not isinstance(rule, rules.Time) or _form(control) != _form(candidate):
        return False
    try:
        one, other = datetime.fromisoformat(control), datetime.fromisoformat(candidate)
        return abs((one - other).total_seconds()) <= rule.seconds
    except (TypeError, ValueError):
        return False


def _form(value: JSON) -> str:
    return "".join("9" if one.isdigit() else one for one in str(value))


def in_words(control: JSON, candidate: JSON) -> str:
    """A note on how two values differ, if that is hard to see or masked; else empty."""
    if isinstance(control, Number):
        same = _decimal(control) == _decimal(candidate)
        return "the same number, formatted differently" if same else ""
    if not isinstance(control, str):
        return ""
    if "".join(control.split()) == "".join(candidate.split()):
        return "only white space differs"
    if control.casefold() == candidate.casefold():
        return "only letter case differs"
    one, other = _decimal(control), _decimal(candidate)
    if one is not None and one == other:
        return "the same number, formatted differently"
    return ""
