"""The newest payments of many batches, read from as few batches as possible."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest

from mappings.batch_lists import load_newest_payments
from mappings.effects import (
    JSON,
    MAX_PARALLEL_CALLS,
    Call,
    CompareAndSet,
    Flow,
    LoadFacts,
    Parallel,
)
from mappings.failures import NoSuchOperation
from mappings.list_filters import Filters

BATCH_COUNT = 60
NO_FILTERS = Filters()


class BatchHistory:
    """Batches of a merchant, at the service and in the recorded object states."""

    def __init__(self, seed: int, *, is_listed: bool = False) -> None:
        self._is_listed = is_listed
        random_source = random.Random(seed)
        self.summaries: dict[str, dict[str, Any]] = {}
        self.object_states: dict[str, dict[str, Any]] = {
            "batch": {},
            "complete": {},
            "payments": {},
            "legacy id": {},
        }
        for number in range(BATCH_COUNT):
            id_, created_at = f"B-{number:02}", format_time(random_source.randrange(40))
            status = random_source.choice(
                ["complete", "complete", "complete", "open", "processing"]
            )
            times = [
                format_time(random_source.randrange(40)) for _ in range(random_source.randrange(5))
            ]
            payments = [
                {"id": f"P-{number}-{index}", "createdAt": time} for index, time in enumerate(times)
            ]
            self.summaries[id_] = {"id": id_, "status": status, "payments": payments}
            self.object_states["batch"][id_] = {
                "phase": "sent",
                "upstream": id_,
                "createdAt": created_at,
            }
        self.read_batch_ids: list[str] = []

    def answer_step(self, step: Any) -> JSON:
        match step:
            case LoadFacts(kind, None):
                return {**self.object_states[kind]}
            case LoadFacts(kind, str() as id_):
                return self.object_states[kind].get(id_, {})
            case Parallel(calls):
                return [self._summary(call.path.split("/")[2]) for call in calls]
            case Call("GET", "/batches"):
                meta = {"page": 1, "pages": 1, "records": len(self.summaries)}
                return {"batches": [*map(self._list_batch, self.summaries)], "meta": meta}
            case CompareAndSet(kind, id_, facts):
                self.object_states[kind][id_] = facts
                for linked_step in step.linked:
                    self.answer_step(linked_step)
                return None
        raise AssertionError(step)

    def _list_batch(self, id_: str) -> JSON:
        summary = self.summaries[id_]
        created_at = self.object_states["batch"].get(id_, {}).get("createdAt")
        return {
            "id": id_,
            "status": summary["status"],
            "createdAt": created_at,
            "updatedAt": format_time(40),
            "totalPayments": len(summary["payments"]),
        }

    def _summary(self, id_: str) -> JSON:
        self.read_batch_ids.append(id_)
        return {"batchSummary": self.summaries[id_]}

    def list_payment_ids_in_order(self, *, id_prefix: str = "") -> list[str]:
        payment_orders = [
            (
                payment["createdAt"],
                self.object_states["batch"][id_]["createdAt"],
                id_,
                index,
                payment["id"],
            )
            for id_, summary in self.summaries.items()
            for index, payment in enumerate(summary["payments"])
            if payment["id"].startswith(id_prefix)
        ]
        return [payment_order[-1] for payment_order in sorted(payment_orders, reverse=True)]

    def run_flow(self, flow: Flow) -> Any:
        self.read_batch_ids, reply = [], None
        while True:
            try:
                step = flow.send(reply)
                while isinstance(step, Call) and not self._is_listed:
                    step = flow.throw(NoSuchOperation(step.path))
                reply = self.answer_step(step)
            except StopIteration as ended:
                return ended.value


def format_time(day: int) -> str:
    return f"2026-01-{1 + day // 2:02}T10:00:0{day % 2}.000Z"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_listed", [False, True])
def test_newest_payments_are_a_prefix_of_all_payments(seed: int, is_listed: bool) -> None:
    batch_history = BatchHistory(seed, is_listed=is_listed)
    all_ids = batch_history.list_payment_ids_in_order()
    # The first query reads each batch; later ones can skip complete batches.
    for max_count in (1, 3, 10, 40, 10**9, 10, 1):
        newest, records = batch_history.run_flow(load_newest_payments(max_count, NO_FILTERS))
        assert [payment["id"] for payment in newest] == all_ids[:max_count]
        assert records == len(all_ids)


def test_complete_batch_is_read_again_only_if_it_may_contribute() -> None:
    batch_history = BatchHistory(seed=7)
    batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    assert len(batch_history.read_batch_ids) == BATCH_COUNT
    batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    complete_ids = {
        id_
        for id_ in batch_history.read_batch_ids
        if batch_history.summaries[id_]["status"] == "complete"
    }
    newest_payment_times = {
        id_: max((payment["createdAt"] for payment in summary["payments"]), default="")
        for id_, summary in batch_history.summaries.items()
    }
    newest, _ = batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    oldest_listed_time = newest[-1]["createdAt"]
    assert complete_ids
    assert (
        sum(newest_payment_times[id_] < oldest_listed_time for id_ in complete_ids)
        < MAX_PARALLEL_CALLS
    )
    unfinished_count = sum(
        summary["status"] != "complete" for summary in batch_history.summaries.values()
    )
    assert len(batch_history.read_batch_ids) == unfinished_count + len(complete_ids) < BATCH_COUNT


def test_filtered_query_reads_every_batch_and_counts_correctly() -> None:
    batch_history = BatchHistory(seed=8)
    batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    newest, records = batch_history.run_flow(load_newest_payments(4, Filters(search="p-1")))
    matching_ids = batch_history.list_payment_ids_in_order(id_prefix="P-1")
    assert [payment["id"] for payment in newest] == matching_ids[:4]
    assert records == len(matching_ids)
    assert len(batch_history.read_batch_ids) == BATCH_COUNT


def test_deleted_complete_batch_makes_room_for_the_next() -> None:
    batch_history = BatchHistory(seed=9)
    batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    deleted_number = batch_history.list_payment_ids_in_order()[0].split("-")[1]
    batch_history.object_states["batch"][f"B-{int(deleted_number):02}"]["phase"] = "deleted"
    del batch_history.summaries[f"B-{int(deleted_number):02}"]
    newest, records = batch_history.run_flow(load_newest_payments(10, NO_FILTERS))
    remaining_ids = batch_history.list_payment_ids_in_order()
    assert [payment["id"] for payment in newest] == remaining_ids[:10]
    assert records == len(remaining_ids)


@pytest.mark.parametrize(
    ("earlier_time", "latest_time"),
    [
        ("2026-03-01T10:00:00Z", "2026-03-01T10:00:00.500Z"),
        ("2026-03-01T11:00:00.000+02:00", "2026-03-01T10:00:00.500Z"),
    ],
)
def test_complete_batch_is_read_if_it_has_a_payment_since(
    earlier_time: str, latest_time: str
) -> None:
    batch_history = BatchHistory(seed=10)
    payments = [
        {"id": "P-1", "createdAt": latest_time},
        {"id": "P-2", "createdAt": earlier_time},
    ]
    summary = {"id": "B-00", "status": "complete", "payments": payments}
    batch_history.summaries = {"B-00": summary}
    batch_history.object_states["batch"] = {"B-00": {"phase": "sent", "upstream": "B-00"}}
    batch_history.run_flow(load_newest_payments(10, NO_FILTERS))

    since = datetime.fromisoformat("2026-03-01T10:00:00.200Z")
    newest, _ = batch_history.run_flow(load_newest_payments(10, Filters(since=since)))
    assert [payment["id"] for payment in newest] == ["P-1"]
