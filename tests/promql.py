"""Parses the part of PromQL that our expressions use: metrics, labels and parentheses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<number>\d+(?:\.\d+)?(?![\w.]))
      | (?P<time>\[(?:\d+[smhdwy]|\$__rate_interval)\])
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])
    )""",
    re.VERBOSE,
)
_FUNCTIONS = {
    *("sum", "min", "max", "count", "topk", "avg"),
    *("rate", "increase", "histogram_quantile", "abs"),
}
_GROUPING = {"by", "without"}
_KEYWORDS = {"and", "or", "unless", "bool"}


@dataclass(frozen=True, slots=True)
class Selector:
    """One metric of an expression; each matcher is a label, an operator and a value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ParsedExpression:
    selectors: tuple[Selector, ...]
    grouped_by: frozenset[str]


class PromQLError(Exception):
    pass


def parse_promql(expression: str) -> ParsedExpression:
    tokens = _Tokens(list(_tokenize(expression)))
    selectors: list[Selector] = []
    grouped: set[str] = set()
    if not tokens.has_balanced_parentheses():
        raise PromQLError(f"does not close: {expression}")
    while (token := tokens.next()) is not None:
        if token in _GROUPING:
            grouped |= set(tokens.read_parenthesized("(", ")"))
        elif token in _FUNCTIONS:
            if tokens.peek() not in ("(", *_GROUPING):
                raise PromQLError(f"{token} is not called")
        elif re.fullmatch(r"[A-Za-z_:][\w:]*", token) and token not in _KEYWORDS:
            if tokens.peek() == "(":
                raise PromQLError(f"{token} is no function that is known here")
            selectors.append(Selector(token, tuple(_parse_matchers(tokens))))
    return ParsedExpression(tuple(selectors), frozenset(grouped))


def _tokenize(expression: str) -> Iterator[str]:
    position, expression = 0, expression.strip()
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise PromQLError(f"cannot be read from {expression[position:]!r} on")
        position = match.end()
        yield match[0].strip()


class _Tokens:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def has_balanced_parentheses(self) -> bool:
        """Whether the parentheses are balanced."""
        depths = [0, *accumulate({"(": 1, ")": -1}.get(token, 0) for token in self._tokens)]
        return min(depths) == depths[-1] == 0

    def peek(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def next(self) -> str | None:
        token = self.peek()
        self._position += 1
        return token

    def read_parenthesized(self, opening: str, closing: str) -> Iterator[str]:
        """The tokens between a pair of parentheses, without commas."""
        if self.next() != opening:
            raise PromQLError(f"{opening} is missing")
        while (token := self.next()) != closing:
            if token is None:
                raise PromQLError(f"{closing} is missing")
            if token != ",":
                yield token


def _parse_matchers(tokens: _Tokens) -> Iterator[tuple[str, str, str]]:
    if tokens.peek() != "{":
        return
    matcher_tokens = list(tokens.read_parenthesized("{", "}"))
    if len(matcher_tokens) % 3:
        raise PromQLError(f"no matchers: {matcher_tokens}")
    for label, operator, value in zip(
        matcher_tokens[::3], matcher_tokens[1::3], matcher_tokens[2::3], strict=True
    ):
        if operator not in ("=", "!=", "=~", "!~") or value[:1] != '"':
            raise PromQLError(f"no matcher: {label} {operator} {value}")
        yield label, operator, value[1:-1]
