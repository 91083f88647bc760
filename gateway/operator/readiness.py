"""What a running gateway found of keys in mode `compare`, and whether anything speaks against their
cutover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.compare.paths import iter_parent_paths
from gateway.compare.rules import Rule
from gateway.observability.plurals import pluralize
from gateway.storage import Store, Tenant
from gateway.storage.difference_rows import Asked, Tally, all_tallies
from gateway.storage.usage_rows import used_since
from mappings import OPERATIONS, UNLISTED

OVERLOOKING = ("ignore", "present")
"""The kinds of rules that need no value: none is kept of what was compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where answers of an operation differ; ``why`` is the reason of a rule that overlooks it."""

    operation: str
    kind: str
    place: str
    answers: int
    why: str | None


@dataclass(slots=True)
class Standing:
    """What was compared of a key, and whether anything speaks against its cutover."""

    owner: Tenant
    key: str
    operations: dict[str, Tally]
    differences: list[Difference] = field(default_factory=list)
    used: frozenset[str] = frozenset()
    """The reads that the key is known to use."""
    never_seen: list[str] = field(default_factory=list)
    """Reads of which nothing was compared: the legacy interface's, and what the key uses beside them."""

    @property
    def compared(self) -> int:
        return sum(one.compared for one in self.operations.values())

    @property
    def unexplained(self) -> int:
        return sum(one.answers for one in self.differences if one.why is None)

    @property
    def uncompared(self) -> list[str]:
        """Of what the key uses, what was never compared."""
        return [name for name in self.never_seen if name in self.used]

    @property
    def may_be_unknown(self) -> bool:
        """Whether one service may not know what the other answered with."""
        return any(one.kind == "status" and one.why is None for one in self.differences)

    @property
    def is_ready(self) -> bool:
        return self.compared > 0 and not self.unexplained and not self.uncompared

    @property
    def last_at(self) -> datetime | None:
        return max((one.last_at for one in self.operations.values() if one.last_at), default=None)

    @property
    def sentence(self) -> str:
        ready = "ready for cutover" if self.is_ready else "not ready for cutover"
        return (
            f"{ready}. {pluralize(self.compared, 'answer')} compared, "
            f"{pluralize(self.unexplained, 'unexplained difference')}, "
            f"{pluralize(len(self.never_seen), 'read')} of which nothing was compared."
        )


async def load_readiness(
    store: Store, name: str | None = None, rules: Sequence[Rule] = ()
) -> list[Standing]:
    """Of every key of which something was compared, or of those of a name; StoreUnavailable."""
    tallies = await all_tallies(store)
    used = {
        (one.merchant, one.environment, one.key, one.operation) for one in await used_since(store)
    }
    return [
        _standing(owner, key, tallies, used, rules)
        for owner, key in dict.fromkeys((one.owner, one.key) for one in tallies)
        if name in (None, key)
    ]


def _standing(
    owner: Tenant,
    key: str,
    tallies: dict[Asked, Tally],
    used: set[tuple[str, str, str, str]],
    rules: Sequence[Rule],
) -> Standing:
    its = {
        one.operation: tally
        for one, tally in tallies.items()
        if (one.owner, one.key) == (owner, key)
    }
    beside = [one for one in UNLISTED if (*owner, key, one.name) in used]
    reads = [one.name for one in (*OPERATIONS, *beside) if one.method == "GET"]
    return Standing(
        owner,
        key,
        its,
        [one for name, tally in its.items() for one in _differences(name, tally, rules)],
        frozenset(name for name in reads if (*owner, key, name) in used),
        [name for name in reads if name not in its or not its[name].compared],
    )


def _differences(name: str, tally: Tally, rules: Sequence[Rule]) -> Iterator[Difference]:
    for (kind, place), answers in sorted(tally.places.items()):
        why = next((one.reason for one in rules if _overlooks(one, name, kind, place)), None)
        yield Difference(name, kind, place, answers, why)


def _overlooks(rule: Rule, operation: str, kind: str, place: str) -> bool:
    """Whether a rule covers something that a place stands in, or what differs at the place itself."""
    if any(rule.covers(operation, one) for one in iter_parent_paths(place)):
        return True
    return (rule.kind == "ignore" or kind == "value") and rule.covers(operation, place)
