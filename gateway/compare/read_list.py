"""Parses a list of reads: a text file with one request per line.

# the first pages
GET /v1/recipients?page=1
GET /v1/profile/balances
"""

from __future__ import annotations

from gateway.compare.errors import InputError
from gateway.compare.requests import parse_request_line
from gateway.compare.rules import Rules
from gateway.compare.steps import Input, Step, Template


def parse_read_request_list(text: str, name: str, rules: Rules) -> Input:
    """Raises InputError with the number of the invalid line."""
    lines = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.strip().startswith("#")
    ]
    steps = tuple(_parse_step(line, name, number, rules) for number, line in lines)
    return Input(name, "list of reads", steps)


def _parse_step(line: str, name: str, number: int, rules: Rules) -> Step:
    method, target = parse_request_line(line, f"{name}, line {number}")
    step = Step(method, Template((target,)), name, number, rules=rules)
    if not step.is_read:
        raise InputError(
            f"{name}, line {number}: {method} is a write; a list of reads may contain only GET and HEAD"
        )
    return step
