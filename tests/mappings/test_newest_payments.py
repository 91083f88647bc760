"""The newest payments of many batches, read from as few batches as possible."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mappings.effects import JSON, MAX_PARALLEL_CALLS, CompareAndSet, Flow, LoadFacts, Parallel
from mappings.newest_payments import load_newest_payments

BATCH_COUNT = 60


class BatchHistory:
    """Batches of a merchant, at the service and in the ledger."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.summaries: dict[str, dict[str, Any]] = {}
        self.ledger: dict[str, dict[str, Any]] = {"batch": {}, "complete": {}, "payments": {}}
        for number in range(BATCH_COUNT):
            id_, at = f"B-{number:02}", format_time(chance.randrange(40))
            status = chance.choice(["complete", "complete", "complete", "open", "processing"])
            times = [format_time(chance.randrange(40)) for _ in range(chance.randrange(5))]
            payments = [
                {"id": f"P-{number}-{place}", "createdAt": time} for place, time in enumerate(times)
            ]
            self.summaries[id_] = {"id": id_, "status": status, "payments": payments}
            self.ledger["batch"][id_] = {"phase": "sent", "upstream": id_, "createdAt": at}
        self.read: list[str] = []

    def answer_step(self, step: Any) -> JSON:
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
                    self.answer_step(one)
                return None
        raise AssertionError(step)

    def _summary(self, id_: str) -> JSON:
        self.read.append(id_)
        return {"batchSummary": self.summaries[id_]}

    def list_payment_ids_in_order(self, *, starts: str = "") -> list[str]:
        rows = [
            (
                payment["createdAt"],
                self.ledger["batch"][id_]["createdAt"],
                id_,
                place,
                payment["id"],
            )
            for id_, summary in self.summaries.items()
            for place, payment in enumerate(summary["payments"])
            if payment["id"].startswith(starts)
        ]
        return [row[-1] for row in sorted(rows, reverse=True)]

    def run_flow(self, flow: Flow) -> Any:
        self.read, reply = [], None
        while True:
            try:
                reply = self.answer_step(flow.send(reply))
            except StopIteration as ended:
                return ended.value


def format_time(day: int) -> str:
    return f"2026-01-{1 + day // 2:02}T10:00:0{day % 2}.000Z"


@pytest.mark.parametrize("seed", range(30))
def test_newest_payments_are_a_prefix_of_all_payments(seed: int) -> None:
    world = BatchHistory(seed)
    all_ = world.list_payment_ids_in_order()
    # The first query reads each batch; later ones can skip complete batches.
    for most in (1, 3, 10, 40, 10**9, 10, 1):
        page = world.run_flow(load_newest_payments(most))
        assert [payment["id"] for payment in page.payments] == all_[:most]
        assert page.records == len(all_)


def test_complete_batch_is_read_again_only_if_it_may_contribute() -> None:
    world = BatchHistory(seed=7)
    world.run_flow(load_newest_payments(10))
    assert len(world.read) == BATCH_COUNT
    world.run_flow(load_newest_payments(10))
    complete_ids = {id_ for id_ in world.read if world.summaries[id_]["status"] == "complete"}
    newest_of = {
        id_: max((one["createdAt"] for one in summary["payments"]), default="")
        for id_, summary in world.summaries.items()
    }
    oldest_shown = world.run_flow(load_newest_payments(10)).payments[-1]["createdAt"]
    assert complete_ids
    assert sum(newest_of[id_] < oldest_shown for id_ in complete_ids) < MAX_PARALLEL_CALLS
    others = sum(one["status"] != "complete" for one in world.summaries.values())
    assert len(world.read) == others + len(complete_ids) < BATCH_COUNT


def test_filtered_query_reads_every_batch_and_counts_correctly() -> None:
    world = BatchHistory(seed=8)
    world.run_flow(load_newest_payments(10))

    def wanted(payments: Any) -> Any:
        yield LoadFacts("payments", "B-00")
        return [payment for payment in payments if payment["id"].startswith("P-1")]

    page = world.run_flow(load_newest_payments(4, wanted))
    all_ = world.list_payment_ids_in_order(starts="P-1")
    assert [payment["id"] for payment in page.payments] == all_[:4]
    assert page.records == len(all_)
    assert len(world.read) == BATCH_COUNT


def test_deleted_complete_batch_makes_room_for_the_next() -> None:
    world = BatchHistory(seed=9)
    world.run_flow(load_newest_payments(10))
    gone = world.list_payment_ids_in_order()[0].split("-")[1]
    world.ledger["batch"][f"B-{int(gone):02}"]["phase"] = "deleted"
    del world.summaries[f"B-{int(gone):02}"]
    page = world.run_flow(load_newest_payments(10))
    assert [payment["id"] for payment in page.payments] == world.list_payment_ids_in_order()[:10]
    assert page.records == len(world.list_payment_ids_in_order())
