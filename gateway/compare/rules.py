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
from gateway.compare.errors import Unusable

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Rule(BaseModel):
    """The fields of all rules. ``origin`` is the file that the rule comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str]
    path: Text
    reason: Text
    operation: str = ""
    origin: str = Field(default="built in", exclude=True)

    @property
    def told(self) -> str:
        """The tolerance or key of the rule, for the report; empty if it has none."""
        return ""

    def covers(self, operation: str, place: str) -> bool:
        if self.operation not in ("", operation):
            return False
        if place == paths.BODY:
            return self.path in (paths.BODY, "**")
        return bool(paths.compile_path_pattern(self.path).fullmatch(place))


class Ignore(Rule):
    """Ignores the path and everything below it."""

    kind = "ignore"


class Added(Rule):
    """Allows candidate to have the path if control does not."""

    kind = "added"


class Present(Rule):
    """Requires the same type on both sides; ignores the value."""

    kind = "present"


class Time(Rule):
    """Allows times of the same format to differ by ``seconds``."""

    kind = "time"
    seconds: Annotated[Decimal, Field(ge=0)]
    with_writes_only: bool = False

    @property
    def told(self) -> str:
        return f"within {self.seconds} s"


class Number(Rule):
    """Allows numbers, or texts that are numbers, to differ by ``tolerance``."""

    kind = "number"
    tolerance: Annotated[Decimal, Field(ge=0)]

    @property
    def told(self) -> str:
        return f"within {self.tolerance}"


class Unordered(Rule):
    """Allows list items in any order. ``key`` names the field that identifies an item."""

    kind = "unordered"
    key: str = ""

    @property
    def told(self) -> str:
        return f"items identified by {self.key}" if self.key else ""


class Id(Rule):
    """Marks a text as an id: each side may have its own, and must use it consistently."""

    kind = "id"
    any_shape: bool = True


class _Written(BaseModel):
    """The content of a rules file, or the ``rules`` of a scenario."""

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
"""Headers that clients depend on; a final ``*`` stands for the rest of a name."""

_SOON = "depends on the time of the request, which is not the same on both sides"
_OWN_WORLD = "with writes, the two sides create their objects at slightly different times"
_COUNTED = "depends on earlier requests to that side"

BUILT_IN: tuple[Rule, ...] = (
    *(
        Id(
            path=path,
            any_shape=False,
            reason="each side has its own ids; they are paired and must stay paired",
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
        reason="not in the legacy document; the gateway adds it",
    ),
    *(
        Present(path=f"@header.{name}", reason=_COUNTED)
        for name in ("ratelimit-remaining", "ratelimit-reset", "retry-after")
    ),
)


@dataclass(frozen=True)
class Rules:
    """Rules in order: of two rules of one kind for a path, the later one applies."""

    rules: tuple[Rule, ...] = BUILT_IN
    headers: tuple[str, ...] = HEADERS
    _known: dict[tuple[str, str], Mapping[str, Rule]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def at(self, operation: str, place: str) -> Mapping[str, Rule]:
        """The rules for a path in normal form, by kind."""
        asked = (operation, place)
        if asked not in self._known:
            self._known[asked] = {
                rule.kind: rule for rule in self.rules if rule.covers(operation, place)
            }
        return self._known[asked]

    def matters(self, name: str) -> bool:
        """Whether a header (lower-case name) is compared."""
        return any(
            name.startswith(one[:-1]) if one.endswith("*") else name == one for one in self.headers
        )

    def and_then(self, other: Rules) -> Rules:
        """These rules followed by others, whose list of headers, if any, replaces this one."""
        return Rules((*self.rules, *other.rules), other.headers or self.headers)

    @cached_property
    def for_reads(self) -> Rules:
        """The rules without those for objects that each side created itself."""
        kept = [one for one in self.rules if not (isinstance(one, Time) and one.with_writes_only)]
        return Rules(tuple(kept), self.headers)


def parse_rules(text: str, name: str) -> Rules:
    """Parses a rules file; raises InputError with the rule and key of each problem."""
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
                f"{name}: {rule.kind} {rule.path}: write [] for list items; a rule applies to all of them"
            )
    return Rules(tuple(rules), tuple(headers))


def _problems(error: ValidationError) -> Iterator[str]:
    """Describes problems without the input, which may contain personal data."""
    for one in error.errors(include_input=False, include_url=False):
        where = "".join(
            f" #{part + 1}" if isinstance(part, int) else f".{part}" for part in one["loc"]
        )
        if one["loc"][-1] == "reason":
            yield f'{where[1:]}: every rule needs a reason (reason = "…")'
        else:
            yield f"{where[1:]}: {one['msg'][0].lower()}{one['msg'][1:]}"
