"""The newest payments of many batches, read from as few batches as possible."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mappings.effects import JSON, MAX_PARALLEL_CALLS, CompareAndSet, Flow, LoadFacts, Parallel
from mappings.newest_payments import load_newest_payments

MANY = 60


class World:
    """Batches of a merchant, at the service and in the ledger."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.summaries: dict[str, dict[str, Any]] = {}
        self.ledger: dict[str, dict[str, Any]] = {"batch": {}, "complete": {}, "payments": {}}
        for number in range(MANY):
            id_, at = f"B-{number:02}", _time(chance.randrange(40))
            status = chance.choice(["complete", "complete", "complete", "open", "processing"])
            times = [_time(chance.randrange(40)) for _ in range(chance.randrange(5))]
            payments = [
                {"id": f"P-{number}-{place}", "createdAt": time} for place, time in enumerate(times)
            ]
            self.summaries[id_] = {"id": id_, "status": status, "payments": payments}
            self.ledger["batch"][id_] = {"phase": "sent", "upstream": id_, "createdAt": at}
        self.read: list[str] = []

    def answer(self, step: Any) -> JSON:
        match step:
            case LoadFacts(kind, None):
                return {**self.ledger[kind]}
            case LoadFacts(kind, str() as id_):
                return self.ledger[kind].get(id_, {})
            case Parallel(calls):
                return [self._summary(call.path.split("/")[2]) for call in calls]
            case CompareAndSet(kind, id_, facts):
                self.ledger[kind][id_] = facts
                for one in step.linked:
                    self.answer(one)
                return None
        raise AssertionError(step)

    def _summary(self, id_: str) -> JSON:
        self.read.append(id_)
        return {"batchSummary": self.summaries[id_]}

    def in_order(self, *, starts: str = "") -> list[str]:
        rows = [
            (one["createdAt"], self.ledger["batch"][id_]["createdAt"], id_, place, one["id"])
            for id_, summary in self.summaries.items()
            for place, one in enumerate(summary["payments"])
            if one["id"].startswith(starts)
        ]
        return [row[-1] for row in sorted(rows, reverse=True)]

    def played(self, flow: Flow) -> Any:
        self.read, given = [], None
        while True:
            try:
                given = self.answer(flow.send(given))
            except StopIteration as ended:
                return ended.value


def _time(day: int) -> str:
    return f"2026-01-{1 + day // 2:02}T10:00:0{day % 2}.000Z"


@pytest.mark.parametrize("seed", range(30))
def test_as_many_as_are_asked_for_are_those_that_all_of_them_begin_with(seed: int) -> None:
    world = World(seed)
    all_ = world.in_order()
    # The first query reads each batch; later ones can skip complete batches.
    for most in (1, 3, 10, 40, 10**9, 10, 1):
        found = world.played(load_newest_payments(most))
        assert [one["id"] for one in found.payments] == all_[:most]
        assert found.records == len(all_)


def test_a_batch_that_is_complete_is_read_again_only_where_it_may_have_one_of_them() -> None:
    world = World(seed=7)
    world.played(load_newest_payments(10))
    assert len(world.read) == MANY
    world.played(load_newest_payments(10))
    its = {id_ for id_ in world.read if world.summaries[id_]["status"] == "complete"}
    newest_of = {
        id_: max((one["createdAt"] for one in summary["payments"]), default="")
        for id_, summary in world.summaries.items()
    }
    oldest_shown = world.played(load_newest_payments(10)).payments[-1]["createdAt"]
    assert its
    assert sum(newest_of[id_] < oldest_shown for id_ in its) < MAX_PARALLEL_CALLS
    others = sum(one["status"] != "complete" for one in world.summaries.values())
    assert len(world.read) == others + len(its) < MANY


def test_whoever_looks_for_some_of_them_has_every_batch_read_and_the_right_number() -> None:
    world = World(seed=8)
    world.played(load_newest_payments(10))

    def wanted(payments: Any) -> Any:
        yield LoadFacts("payments", "B-00")
        return [one for one in payments if one["id"].startswith("P-1")]

    found = world.played(load_newest_payments(4, wanted))
    all_ = world.in_order(starts="P-1")
    assert [one["id"] for one in found.payments] == all_[:4]
    assert found.records == len(all_)
    assert len(world.read) == MANY


def test_a_complete_batch_that_is_gone_leaves_room_for_the_next() -> None:
    world = World(seed=9)
    world.played(load_newest_payments(10))
    gone = world.in_order()[0].split("-")[1]
    world.ledger["batch"][f"B-{int(gone):02}"]["phase"] = "deleted"
    del world.summaries[f"B-{int(gone):02}"]
    found = world.played(load_newest_payments(10))
    assert [one["id"] for one in found.payments] == world.in_order()[:10]
    assert found.records == len(world.in_order())
