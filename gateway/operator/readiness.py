"""Evaluates shadow traffic: whether a key in mode `compare` is ready for cutover."""

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
"""The kinds of rules that can be applied without values: compared values are not stored."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where answers of an operation differ. ``why`` is the reason of the rule that ignores
    it.
    """

    operation: str
    kind: str
    place: str
    answers: int
    why: str | None


@dataclass(slots=True)
class Standing:
    """The comparison results of one key."""

    owner: Tenant
    key: str
    operations: dict[str, Tally]
    differences: list[Difference] = field(default_factory=list)
    used: frozenset[str] = frozenset()
    """Reads that the key has used."""
    never_seen: list[str] = field(default_factory=list)
    """Reads that were never compared: all documented ones, and undocumented ones that the key uses.
    """

    @property
    def compared(self) -> int:
        return sum(one.compared for one in self.operations.values())

    @property
    def unexplained(self) -> int:
        return sum(one.answers for one in self.differences if one.why is None)

    @property
    def uncompared(self) -> list[str]:
        """Reads that the key uses and that were never compared."""
        return [name for name in self.never_seen if name in self.used]

    @property
    def may_be_unknown(self) -> bool:
        """Whether one service may lack objects that the other has."""
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
            f"{pluralize(len(self.never_seen), 'read')} never compared."
        )


async def load_readiness(
    store: Store, name: str | None = None, rules: Sequence[Rule] = ()
) -> list[Standing]:
    """The results of every compared key, or of keys with this name. Raises StoreUnavailable."""
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
    # Tallies are stored per tenant, key and operation.
    its = {
        one.operation: tally
        for one, tally in tallies.items()
        if (one.owner, one.key) == (owner, key)
    }
    beside = [one for one in UNLISTED if (*owner, key, one.name) in used]
    # Only reads: a write is never sent to both services.
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
        # The first matching rule explains the difference.
        why = next((one.reason for one in rules if _overlooks(one, name, kind, place)), None)
        yield Difference(name, kind, place, answers, why)


def _overlooks(rule: Rule, operation: str, kind: str, place: str) -> bool:
    """Whether a rule ignores the difference: it covers a parent of the place, or the place itself."""
    if any(rule.covers(operation, one) for one in iter_parent_paths(place)):
        return True
    return (rule.kind == "ignore" or kind == "value") and rule.covers(operation, place)
