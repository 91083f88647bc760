"""Rules: differences that a comparison ignores, each with a reason.

A rule names a path in normal form (``payments[].sourceAmount``; ``*`` is one key, ``**`` any number
of parts), may name one operation, and must give a reason. The report lists each rule and how often it
applied.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gateway.compare import paths
from gateway.compare.errors import InputError

NonEmptyText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Rule(BaseModel):
    """The fields of all rules. ``origin`` is the file that the rule comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str]
    path: NonEmptyText
    reason: NonEmptyText
    operation: str = ""
    origin: str = Field(default="built in", exclude=True)

    @property
    def effect(self) -> str:
        """The tolerance or key of the rule, for the report; empty if it has none."""
        return ""

    def applies_to(self, operation: str, normal_path: str) -> bool:
        if self.operation not in ("", operation):
            return False
        # The whole body has no key that a wildcard could match, except for `**`.
        if normal_path == paths.BODY_PATH:
            return self.path in (paths.BODY_PATH, "**")
        return bool(paths.compile_path_pattern(self.path).fullmatch(normal_path))


class IgnoreRule(Rule):
    """Ignores the path and everything below it."""

    kind = "ignore"


class AddedRule(Rule):
    """Allows candidate to have the path if control does not."""

    kind = "added"


class PresentRule(Rule):
    """Requires the same type on both sides; ignores the value."""

    kind = "present"


class TimeRule(Rule):
    """Allows times of the same format to differ by ``seconds``."""

    kind = "time"
    seconds: Annotated[Decimal, Field(ge=0)]
    with_writes_only: bool = False

    @property
    def effect(self) -> str:
        return f"within {self.seconds} s"


class NumberRule(Rule):
    """Allows numbers, or texts that are numbers, to differ by ``tolerance``."""

    kind = "number"
    tolerance: Annotated[Decimal, Field(ge=0)]

    @property
    def effect(self) -> str:
        return f"within {self.tolerance}"


class UnorderedRule(Rule):
    """Allows list items in any order. ``key`` names the field that identifies an item."""

    kind = "unordered"
    key: str = ""

    @property
    def effect(self) -> str:
        return f"items identified by {self.key}" if self.key else ""


class IdRule(Rule):
    """Marks a text as an id: each side may have its own, and must use it consistently."""

    kind = "id"
    any_shape: bool = True


class _RulesDocument(BaseModel):
    """The content of a rules file, or the ``rules`` of a scenario."""

    model_config = ConfigDict(extra="forbid")
    headers: list[NonEmptyText] | None = None
    ignore: list[IgnoreRule] = []
    added: list[AddedRule] = []
    present: list[PresentRule] = []
    time: list[TimeRule] = []
    number: list[NumberRule] = []
    unordered: list[UnorderedRule] = []
    id: list[IdRule] = []


COMPARED_HEADERS = ("content-type", "access-control-allow-origin", "retry-after", "ratelimit-*")
"""Headers that clients depend on; a final ``*`` stands for the rest of a name."""

_REQUEST_TIME_REASON = "depends on the time of the request, which is not the same on both sides"
_SEPARATE_OBJECTS_REASON = (
    "with writes, the two sides create their objects at slightly different times"
)
_USAGE_REASON = "depends on earlier requests to that side"

BUILT_IN: tuple[Rule, ...] = (
    *(
        IdRule(
            path=path,
            any_shape=False,
            reason="each side has its own ids; they are paired and must stay paired",
        )
        for path in ("**.id", "**.recipientId", "**.batchId", "**.paymentId")
    ),
    *(
        TimeRule(path=f"**.{name}", seconds=Decimal(60), reason=_REQUEST_TIME_REASON)
        for name in ("serverTime", "quoteExpiredAt")
    ),
    *(
        TimeRule(
            path=f"**.{name}",
            seconds=Decimal(60),
            reason=_SEPARATE_OBJECTS_REASON,
            with_writes_only=True,
        )
        for name in ("createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt")
    ),
    AddedRule(
        path="@header.ratelimit-*",
        reason="not in the legacy document; the gateway adds it",
    ),
    *(
        PresentRule(path=f"@header.{name}", reason=_USAGE_REASON)
        for name in ("ratelimit-remaining", "ratelimit-reset", "retry-after")
    ),
)


@dataclass(frozen=True)
class Rules:
    """Rules in order: of two rules of one kind for a path, the later one applies."""

    rules: tuple[Rule, ...] = BUILT_IN
    headers: tuple[str, ...] = COMPARED_HEADERS
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
        """Whether a header (lower-case name) is compared."""
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for pattern in self.headers
        )

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
        raise InputError(f"{name}: {'; '.join(_describe_problems(error))}") from None
    lists = (
        model.ignore,
        model.added,
        model.present,
        model.time,
        model.number,
        model.unordered,
        model.id,
    )
    rules = [rule.model_copy(update={"origin": name}) for rules in lists for rule in rules]
    headers = [header.lower() for header in model.headers or ()]
    for rule in rules:
        # It would match nothing, because normal forms have no indices.
        if re.search(r"\[\d", rule.path):
            raise InputError(
                f"{name}: {rule.kind} {rule.path}: write [] for list items; a rule applies to all of them"
            )
    return Rules(tuple(rules), tuple(headers))


def _describe_problems(error: ValidationError) -> Iterator[str]:
    """Describes problems without the input, which may contain personal data."""
    for problem in error.errors(include_input=False, include_url=False):
        location = "".join(
            f" #{part + 1}" if isinstance(part, int) else f".{part}" for part in problem["loc"]
        )
        if problem["loc"][-1] == "reason":
            yield f'{location[1:]}: every rule needs a reason (reason = "…")'
        else:
            yield f"{location[1:]}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
