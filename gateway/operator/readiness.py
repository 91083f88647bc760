"""Evaluates shadow traffic: whether a key in mode `compare` is ready for cutover."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.compare.paths import iter_parent_paths
from gateway.compare.rules import Rule
from gateway.observability.plurals import pluralize
from gateway.storage import Store, Tenant
from gateway.storage.difference_rows import (
    DifferenceExample,
    Tally,
    load_comparison_tallies_by_key,
)
from gateway.storage.request_counts import load_usage
from mappings import OPERATIONS, UNLISTED

VALUE_FREE_RULE_KINDS = ("ignore", "present")
"""The kinds of rules that can be applied without values: of the compared values, only masked examples are stored."""


UNKNOWN_OBJECT_HINT = (
    "If the status differs, one service may not have the requested object: `payout-gateway cutover "
    "import` imports the objects that only the legacy service has."
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A path at which answers differ. ``why`` is the reason of the rule that ignores it.

    ``example`` is the newest answer that differs there.
    """

    operation: str
    kind: str
    place: str
    answers: int
    why: str | None
    example: DifferenceExample


@dataclass(slots=True)
class KeyReadiness:
    owner: Tenant
    key: str
    operations: dict[str, Tally]
    differences: list[Difference] = field(default_factory=list)
    used: frozenset[str] = frozenset()
    never_seen: list[str] = field(default_factory=list)
    """Documented reads, and undocumented ones that the key uses, that were never compared."""

    @property
    def answer_count(self) -> int:
        """Answers that were compared."""
        return sum(tally.compared for tally in self.operations.values())

    @property
    def open_difference_count(self) -> int:
        """Answers with a difference that no rule explains, counted for each difference."""
        return sum(difference.answers for difference in self.differences if difference.why is None)

    @property
    def missing_reads(self) -> list[str]:
        return [name for name in self.never_seen if name in self.used]

    @property
    def unused_reads(self) -> list[str]:
        """Reads that were never compared, because the key is not known to use them."""
        return [name for name in self.never_seen if name not in self.used]

    @property
    def mostly_incomparable_reads(self) -> list[str]:
        return [name for name, tally in self.operations.items() if tally.failed > tally.compared]

    @property
    def obstacles(self) -> list[str]:
        """Sentences that say what is missing before the key is ready, other than differences."""
        sentences, key = [], shlex.quote(self.key)
        if self.missing_reads:
            sentence = f"Used by the key but never compared: {', '.join(self.missing_reads)}."
            if "list_payments" in self.missing_reads:
                sentence += (
                    " The payments of all batches are compared once every batch is imported: run "
                    f"`payout-gateway cutover import --key {key}` with the key itself in "
                    "$LEGACY_API_KEY, and let the client list them again."
                )
            sentences.append(sentence)
        if any(each.kind == "status" and each.why is None for each in self.differences):
            sentences.append(UNKNOWN_OBJECT_HINT)
        tallies = [(name, self.operations[name]) for name in self.mostly_incomparable_reads]
        if counts := [
            f"{name} ({tally.compared} of {tally.compared + tally.failed} compared)"
            for name, tally in tallies
        ]:
            sentences.append(
                f"Mostly not comparable: {', '.join(counts)}. A service did not answer, or batches "
                "are not imported yet (`payout-gateway cutover import`). When that is repaired, reset "
                f"the statistics: `payout-gateway compare report --key {key} --forget`."
            )
        return sentences

    @property
    def is_ready(self) -> bool:
        return self.answer_count > 0 and not (self.open_difference_count or self.obstacles)

    @property
    def last_at(self) -> datetime | None:
        return max(
            (tally.last_at for tally in self.operations.values() if tally.last_at), default=None
        )

    @property
    def sentence(self) -> str:
        # Nothing is known of reads that it may use later.
        ready = (
            "ready for cutover of the reads that it uses"
            if self.is_ready
            else "not ready for cutover"
        )
        return (
            f"{ready}. {pluralize(self.answer_count, 'response')} compared, "
            f"{sum(tally.failed for tally in self.operations.values())} not comparable, "
            f"{pluralize(self.open_difference_count, 'unexplained difference')}, "
            f"{pluralize(len(self.unused_reads), 'read')} not used and not compared."
        )


async def load_cutover_readiness(
    store: Store, name: str | None = None, rules: Sequence[Rule] = ()
) -> list[KeyReadiness]:
    """Returns the results of all compared keys, or by name. Raises StoreUnavailable."""
    tallies_by_key: dict[tuple[Tenant, str], dict[str, Tally]] = {}
    for (tenant, key, operation), tally in (await load_comparison_tallies_by_key(store)).items():
        if name in (None, key):
            tallies_by_key.setdefault((tenant, key), {})[operation] = tally
    # A read that the key uses must have been compared before the key is ready.
    used = {(usage.tenant, usage.key): {*usage.operations} for usage in await load_usage(store)}
    return [
        _build_cutover_readiness(*owner, tallies, used.get(owner, set()), rules)
        for owner, tallies in tallies_by_key.items()
    ]


def _build_cutover_readiness(
    tenant: Tenant, key: str, tallies: dict[str, Tally], used: set[str], rules: Sequence[Rule]
) -> KeyReadiness:
    documented = (*OPERATIONS, *(operation for operation in UNLISTED if operation.name in used))
    # Only reads: a write is never sent to both services.
    reads = [operation.name for operation in documented if operation.method == "GET"]
    differences = [
        difference
        for name, tally in tallies.items()
        for difference in _iter_differences(name, tally, rules)
    ]
    never_seen = [name for name in reads if name not in tallies or not tallies[name].compared]
    return KeyReadiness(tenant, key, tallies, differences, frozenset(used), never_seen)


def _iter_differences(name: str, tally: Tally, rules: Sequence[Rule]) -> Iterator[Difference]:
    for (kind, place), answers in sorted(tally.places.items()):
        # The first matching rule explains the difference.
        matching = (rule for rule in rules if _is_difference_ignored_by(rule, name, kind, place))
        reason = next((rule.reason for rule in matching), None)
        example = tally.examples.get((kind, place), DifferenceExample())
        yield Difference(name, kind, place, answers, reason, example)


def _is_difference_ignored_by(rule: Rule, operation: str, kind: str, place: str) -> bool:
    """Whether a rule ignores the difference: it covers a parent of the place, or the place itself."""
    if any(rule.applies_to(operation, parent) for parent in iter_parent_paths(place)):
        return True
    return (rule.kind == "ignore" or kind == "value") and rule.applies_to(operation, place)
