"""Rules: differences that a comparison ignores, each with a reason.

A rule names a path in normal form (``payments[].sourceAmount``; ``*`` is one key, ``**`` any number
of parts), may name one operation, and must give a reason. The report lists each rule and how often it
applied.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Context, Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from gateway.compare import paths
from gateway.compare.requests import InputError
from gateway.compare.strict_json import JSON, Number
from gateway.config.section import list_problems

# Not the default context, which rounds to 28 digits and could make two amounts equal.
_CONTEXT = Context(prec=400)

_DECIMAL_TEXT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""``Decimal`` accepts more: non-ASCII digits, ``1_000``, white space, ``sNaN``."""

NonEmptyText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _check_has_no_index(path: str) -> str:
    # It would match nothing, because normal forms have no indices.
    if re.search(r"\[\d", path):
        raise ValueError("write [] for list items; a rule applies to all of them")
    return path


BUILT_IN = "built in"
"""The origin of the rules that apply to every comparison."""


class Rule(BaseModel):
    """A rule. ``origin`` is the file that it comes from.

    Of the kinds that have no other fields, ``ignore`` ignores the path and everything below it,
    ``added`` allows candidate to have the path if control does not, and ``present`` requires the
    same type on both sides and ignores the value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: str = Field("", exclude=True)
    path: Annotated[NonEmptyText, AfterValidator(_check_has_no_index)]
    reason: NonEmptyText
    operation: str = ""
    origin: str = Field(default=BUILT_IN, exclude=True)

    @property
    def effect(self) -> str:
        """The tolerance or key of the rule, for the report; empty if it has none."""
        return ""

    def tolerates(self, control: JSON, candidate: JSON) -> bool:  # noqa: ARG002
        """Whether two different scalars count as equal."""
        return False

    def applies_to(self, operation: str, normal_path: str) -> bool:
        if self.operation not in ("", operation):
            return False
        # The whole body has no key that a wildcard could match, except for `**`.
        if normal_path == paths.BODY_PATH:
            return self.path in (paths.BODY_PATH, "**")
        return bool(paths.compile_path_pattern(self.path).fullmatch(normal_path))


class TimeRule(Rule):
    """Allows times of the same format to differ by ``seconds``."""

    kind: str = Field("time", exclude=True)
    seconds: Annotated[Decimal, Field(ge=0)]
    with_writes_only: bool = False

    @property
    def effect(self) -> str:
        return f"within {self.seconds} s"

    def tolerates(self, control: JSON, candidate: JSON) -> bool:
        # The format must match because clients parse it.
        if re.sub(r"\d", "9", str(control)) != re.sub(r"\d", "9", str(candidate)):
            return False
        try:
            times = datetime.fromisoformat(control), datetime.fromisoformat(candidate)
            return abs((times[0] - times[1]).total_seconds()) <= self.seconds
        except (TypeError, ValueError):
            return False


class NumberRule(Rule):
    """Allows numbers, or texts that are numbers, to differ by ``tolerance``."""

    kind: str = Field("number", exclude=True)
    tolerance: Annotated[Decimal, Field(ge=0)]

    @property
    def effect(self) -> str:
        return f"within {self.tolerance}"

    def tolerates(self, control: JSON, candidate: JSON) -> bool:
        numbers = parse_decimal(control), parse_decimal(candidate)
        if numbers[0] is None or numbers[1] is None:
            return False
        try:
            return abs(_CONTEXT.subtract(numbers[0], numbers[1])) <= self.tolerance
        except ArithmeticError:
            return False


class UnorderedRule(Rule):
    """Allows list items in any order. ``key`` names the field that identifies an item."""

    kind: str = Field("unordered", exclude=True)
    key: str = ""

    @property
    def effect(self) -> str:
        return f"items identified by {self.key}" if self.key else ""


class IdRule(Rule):
    """Marks a text as an id: each side may have its own, and must use it consistently."""

    kind: str = Field("id", exclude=True)
    any_shape: bool = True


class _RulesDocument(BaseModel):
    """The content of a rules file, or the ``rules`` of a scenario."""

    model_config = ConfigDict(extra="forbid")
    headers: list[NonEmptyText] = []
    ignore: list[Rule] = []
    added: list[Rule] = []
    present: list[Rule] = []
    time: list[TimeRule] = []
    number: list[NumberRule] = []
    unordered: list[UnorderedRule] = []
    id: list[IdRule] = []


_OWN_LOG = "each service logs the requests that it receives itself"
_EARLIER_REQUESTS = "depends on earlier requests to that side"
_REQUEST_TIME = "depends on the time of the request, which is not the same on both sides"
_WRITE_TIME = "with writes, the two sides create their objects at slightly different times"
_OWN_ID = "each side has its own ids; they are paired and must stay paired"

_MINUTE = Decimal(60)

BUILT_IN_RULES: tuple[Rule, ...] = (
    *(
        Rule(kind="ignore", path=path, operation="read_recipient_logs", reason=_OWN_LOG)
        for path in ("activities", "meta.records", "meta.pages")
    ),
    Rule(
        kind="added",
        path="@header.ratelimit-*",
        reason="not in the legacy document; the gateway adds it",
    ),
    *(
        Rule(kind="present", path=f"@header.{name}", reason=_EARLIER_REQUESTS)
        for name in ("ratelimit-remaining", "ratelimit-reset", "retry-after")
    ),
    *(
        TimeRule(path=f"**.{name}", seconds=_MINUTE, reason=_REQUEST_TIME)
        for name in ("serverTime", "quoteExpiredAt")
    ),
    *(
        TimeRule(path=f"**.{name}", seconds=_MINUTE, with_writes_only=True, reason=_WRITE_TIME)
        for name in ("createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt")
    ),
    *(
        IdRule(path=f"**.{name}", any_shape=False, reason=_OWN_ID)
        for name in ("id", "recipientId", "batchId", "paymentId")
    ),
)
"""The rules that apply to every comparison; those of files are added to them."""

# Clients depend on them.
COMPARED_HEADERS = ("content-type", "access-control-allow-origin", "retry-after", "ratelimit-*")


@dataclass(frozen=True)
class Rules:
    """Rules in order: of two rules of one kind for a path, the later one applies."""

    rules: tuple[Rule, ...] = BUILT_IN_RULES
    headers: tuple[str, ...] = COMPARED_HEADERS
    """Headers that are compared; a final ``*`` stands for the rest of a name."""
    # Every value of every answer looks up its rules, but there are few distinct paths.
    _cache: dict[tuple[str, str], Mapping[str, Rule]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def map_matching_rules_by_kind(self, operation: str, normal_path: str) -> Mapping[str, Rule]:
        """Returns the rules for a path in normal form, by kind."""
        cache_key = (operation, normal_path)
        if cache_key not in self._cache:
            self._cache[cache_key] = {
                rule.kind: rule for rule in self.rules if rule.applies_to(operation, normal_path)
            }
        return self._cache[cache_key]

    def is_compared_header(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.headers)

    def combine(self, later: Rules) -> Rules:
        """Appends other rules, whose list of headers, if any, replaces this one."""
        return Rules((*self.rules, *later.rules), later.headers or self.headers)

    @cached_property
    def rules_for_runs_without_writes(self) -> Rules:
        """The rules without those for objects that each side created itself."""
        remaining = [
            rule
            for rule in self.rules
            if not (isinstance(rule, TimeRule) and rule.with_writes_only)
        ]
        return Rules(tuple(remaining), self.headers)


def parse_rules(text: str, name: str) -> Rules:
    """Parses a rules file; raises InputError with the rule and key of each problem."""
    try:
        # A tolerance of 0.01 must be exact.
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None
    return build_rules(document, name)


def build_rules(document: Mapping[str, Any], name: str) -> Rules:
    try:
        model = _RulesDocument.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{name}: {describe_mistakes(error, _RulesDocument)}") from None
    rules = [
        rule.model_copy(update={"kind": kind, "origin": name})
        for kind, rules in model
        if kind != "headers"
        for rule in rules
    ]
    return Rules(tuple(rules), tuple(header.lower() for header in model.headers))


def describe_mistakes(error: ValidationError, model: type[BaseModel]) -> str:
    """Describes the mistakes in a file without its content, which may be personal data."""
    return "; ".join(
        f"{_format_location(loc)}: {_EVERY_RULE_NEEDS_A_REASON if loc[-1:] == ('reason',) else text}"
        for loc, text in list_problems(error, model, "key")
    )


_EVERY_RULE_NEEDS_A_REASON = 'every rule needs a reason (reason = "…")'


def _format_location(location: tuple[int | str, ...]) -> str:
    parts = (f" #{part + 1}" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def parse_decimal(value: JSON) -> Decimal | None:
    """Returns the value of a number, or of a text that is one; else None."""
    text = value.text if isinstance(value, Number) else value
    if not isinstance(text, str) or not _DECIMAL_TEXT.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except ArithmeticError:
        return None
