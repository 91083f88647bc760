"""The newest payments of a merchant over all batches, for which the service has no list.

A complete batch does not change any more. The gateway stores how many payments it has and when the
newest of them was created (kind ``complete``), and reads its summary only if it may have some of
the requested payments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from mappings.batch_reads import SLICE, is_missing, load_batches
from mappings.batch_views import Batch
from mappings.dates import BEGINNING, parse_instant
from mappings.grammar import JSON, SIDE_BY_SIDE, Recall, Record
from mappings.matching import Payment
from mappings.payouts import Sub


class Newest(NamedTuple):
    payments: Sequence[Payment]
    records: int
    """How many payments there are in total."""


def newest(
    most: int,
    wanted: Callable[[Sequence[Payment]], Sub] | None = None,
    since: datetime = BEGINNING,
) -> Sub:
    """GET /batch/:id/summary of each batch that may have one of the ``limit`` newest payments.

    Returns these payments, the newest first. With a filter, ``select_wanted``, every batch is read,
    except for complete ones without a payment created after ``since``.
    """
    known, counted = (yield Recall("batch")), (yield Recall("complete"))
    made = {
        id_: str(facts.get("createdAt") or "")
        for id_, facts in known.items()
        if facts.get("phase") != "deleted"
    }
    complete = [] if wanted else [id_ for id_ in made if id_ in counted]
    # Complete batches are read last and only as needed; the others may have new payments.
    complete.sort(key=lambda id_: str(counted[id_]["newest"]), reverse=True)
    older = {id_ for id_ in made if wanted and _is_older(counted.get(id_), since)}
    left_to_read = made.keys() - complete - older
    others = sorted(left_to_read, key=lambda id_: (made[id_], id_), reverse=True)
    found, left = _Found(most, wanted, counted), deque(complete)
    yield from found.read(others)
    while some := found.may_be_in(left):
        yield from found.read(some)
    unread = sum(counted[id_]["payments"] for id_ in left)
    return Newest([one.payment for one in found.newest], found.records + unread)


def _is_older(complete: Mapping[str, JSON] | None, since: datetime) -> bool:
    """Whether a batch is known to be complete and to have no payment created since then."""
    return complete is not None and BEGINNING < parse_instant(complete["newest"]) < since


class _Made(NamedTuple):
    """A payment with its sort key, newest last.

    Of payments with the same time, that in the newer batch counts as newer, and then the later one.
    """

    at: str
    batch_at: str
    batch: str
    place: int
    payment: Payment


def _made(batch: Batch, payments: Sequence[Payment]) -> Iterator[_Made]:
    batch_at = str(batch.facts.get("createdAt") or "")
    for place, one in enumerate(payments):
        told = one.get("createdAt") or (one.get("batch") or {}).get("createdAt")
        yield _Made(str(told or batch_at), batch_at, batch.id, place, one)


@dataclass(slots=True)
class _Found:
    """Reads batches and keeps no more than the ``limit`` newest of their payments."""

    most: int
    wanted: Callable[[Sequence[Payment]], Sub] | None
    counted: Mapping[str, Mapping[str, JSON]]
    newest: list[_Made] = field(default_factory=list)
    records: int = 0

    def read(self, names: Sequence[str]) -> Sub:
        for start in range(0, len(names), SLICE):
            complete: list[Record] = []
            for batch in (yield from load_batches(names[start : start + SLICE])):
                if isinstance(batch, Batch):
                    yield from self._add(batch)
                    complete += record_completion(batch) if batch.id not in self.counted else ()
                # A deleted batch has no payments. Any other failure would leave a gap in the list.
                elif not is_missing(batch):
                    raise batch
            if complete:
                yield replace(complete[0], also=tuple(complete[1:]))

    def _add(self, batch: Batch) -> Sub:
        its = (yield from self.wanted(batch.payments)) if self.wanted else batch.payments
        self.records += len(its)
        there = chain(self.newest, _made(batch, its))
        self.newest = nlargest(self.most, there, key=lambda one: one[:4])

    def may_be_in(self, left: deque[str]) -> Sequence[str]:
        """Take the next batches to read from ``remaining_ids``, which has the newest first."""
        # Batches are added until those taken have enough payments, or until the next one has only
        # payments older than any that are kept.
        missing, some = self.most - len(self.newest), list[str]()
        since = None if missing > 0 else self.newest[-1].at
        while left and len(some) < SIDE_BY_SIDE:
            its = self.counted[left[0]]
            if missing <= 0 and (since is None or its["newest"] < since):
                break
            some.append(left.popleft())
            missing -= its["payments"]
        return some


def record_completion(batch: Batch) -> Iterator[Record]:
    """Build the record of a batch that is complete; none for any other."""
    if batch.status == "complete" and batch.tells_payments:
        last = max((one.at for one in _made(batch, batch.payments)), default="")
        yield Record("complete", batch.id, {"payments": len(batch.payments), "newest": last})
