"""Rules: what a comparison is to overlook, each with the reason why.

A rule names a path in normal form (``payments[].sourceAmount``; ``*`` is one key, ``**`` any number
of parts), may name one operation, and must give a reason. The report lists every rule and how often
it was needed.
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
from gateway.compare.errors import Unusable

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Rule(BaseModel):
    """What all rules have; ``origin`` is who wrote it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str]
    path: Text
    reason: Text
    operation: str = ""
    origin: str = Field(default="built in", exclude=True)

    @property
    def told(self) -> str:
        """What it does beside where, for the report."""
        return ""

    def covers(self, operation: str, place: str) -> bool:
        if self.operation not in ("", operation):
            return False
        if place == paths.BODY:
            return self.path in (paths.BODY, "**")
        return bool(paths.compile_path_pattern(self.path).fullmatch(place))


class Ignore(Rule):
    """Nothing at the path, or below it, is compared."""

    kind = "ignore"


class Added(Rule):
    """What only candidate has at the path is no difference."""

    kind = "added"


class Present(Rule):
    """There on both sides, and of the same type; the value is not compared."""

    kind = "present"


class Time(Rule):
    """Two times, written in the same way, are equal within so many seconds."""

    kind = "time"
    seconds: Annotated[Decimal, Field(ge=0)]
    with_writes_only: bool = False

    @property
    def told(self) -> str:
        return f"within {self.seconds} s"


class Number(Rule):
    """Two numbers, or texts that are numbers, are equal within a tolerance."""

    kind = "number"
    tolerance: Annotated[Decimal, Field(ge=0)]

    @property
    def told(self) -> str:
        return f"within {self.tolerance}"


class Unordered(Rule):
    """A list whose items may stand in any order; ``key`` tells which two are the same item."""

    kind = "unordered"
    key: str = ""

    @property
    def told(self) -> str:
        return f"items known by {self.key}" if self.key else ""


class Id(Rule):
    """A text that names an object: each side may have its own, and keeps to it."""

    kind = "id"
    any_shape: bool = True


class _Written(BaseModel):
    """A rules file, or the ``rules`` of a scenario."""

    model_config = ConfigDict(extra="forbid")
    headers: list[Text] | None = None
    ignore: list[Ignore] = []
    added: list[Added] = []
    present: list[Present] = []
    time: list[Time] = []
    number: list[Number] = []
    unordered: list[Unordered] = []
    id: list[Id] = []


HEADERS = ("content-type", "access-control-allow-origin", "retry-after", "ratelimit-*")
"""The headers that matter to clients; ``*`` stands for the rest of a name."""

_SOON = "it tells the moment of asking, and the two sides are not asked in the same one"
_OWN_WORLD = "with writes, each side makes its objects a moment apart"
_COUNTED = "it counts what was asked of that side before"

BUILT_IN: tuple[Rule, ...] = (
    *(
        Id(
            path=path,
            any_shape=False,
            reason="each side has its own ids; they are paired, and have to stay paired",
        )
        for path in ("**.id", "**.recipientId", "**.batchId", "**.paymentId")
    ),
    *(
        Time(path=f"**.{name}", seconds=Decimal(60), reason=_SOON)
        for name in ("serverTime", "quoteExpiredAt")
    ),
    *(
        Time(path=f"**.{name}", seconds=Decimal(60), reason=_OWN_WORLD, with_writes_only=True)
        for name in ("createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt")
    ),
    Added(
        path="@header.ratelimit-*",
        reason="the legacy document names no such header; the gateway sends it",
    ),
    *(
        Present(path=f"@header.{name}", reason=_COUNTED)
        for name in ("ratelimit-remaining", "ratelimit-reset", "retry-after")
    ),
)


@dataclass(frozen=True)
class Rules:
    """Rules in the order of their rank: a later one of a kind goes before an earlier one."""

    rules: tuple[Rule, ...] = BUILT_IN
    headers: tuple[str, ...] = HEADERS
    _known: dict[tuple[str, str], Mapping[str, Rule]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def at(self, operation: str, place: str) -> Mapping[str, Rule]:
        """The rules for a place, by kind."""
        asked = (operation, place)
        if asked not in self._known:
            self._known[asked] = {
                rule.kind: rule for rule in self.rules if rule.covers(operation, place)
            }
        return self._known[asked]

    def matters(self, name: str) -> bool:
        """Whether a header, by its lower-case name, is compared."""
        return any(
            name.startswith(one[:-1]) if one.endswith("*") else name == one for one in self.headers
        )

    def and_then(self, other: Rules) -> Rules:
        """These, and those of a file after them; its list of headers takes the place of this one."""
        return Rules((*self.rules, *other.rules), other.headers or self.headers)

    @cached_property
    def for_reads(self) -> Rules:
        """Without those that only hold where both sides made their own objects."""
        kept = [one for one in self.rules if not (isinstance(one, Time) and one.with_writes_only)]
        return Rules(tuple(kept), self.headers)


def parse_rules(text: str, name: str) -> Rules:
    """The rules of a file; raises Unusable with the rule and key of what is wrong."""
    try:
        written = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise Unusable(f"{name}: not TOML: {error}") from None
    return validate_rules(written, name)


def validate_rules(written: Mapping[str, Any], name: str) -> Rules:
    try:
        read = _Written.model_validate(written)
    except ValidationError as error:
        raise Unusable(f"{name}: {'; '.join(_problems(error))}") from None
    lists = (read.ignore, read.added, read.present, read.time, read.number, read.unordered, read.id)
    rules = [rule.model_copy(update={"origin": name}) for rules in lists for rule in rules]
    headers = [one.lower() for one in read.headers or ()]
    for rule in rules:
        if re.search(r"\[\d", rule.path):
            raise Unusable(
                f"{name}: {rule.kind} {rule.path}: items are written [], for all of them"
            )
    return Rules(tuple(rules), tuple(headers))


def _problems(error: ValidationError) -> Iterator[str]:
    """Without what was written: a reason may well quote somebody."""
    for one in error.errors(include_input=False, include_url=False):
        where = "".join(
            f" #{part + 1}" if isinstance(part, int) else f".{part}" for part in one["loc"]
        )
        if one["loc"][-1] == "reason":
            yield f'{where[1:]}: a rule has to say why (reason = "…")'
        else:
            yield f"{where[1:]}: {one['msg'][0].lower()}{one['msg'][1:]}"
