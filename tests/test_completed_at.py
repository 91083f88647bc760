"""``completedAt`` of a batch if the service does not return it: the latest ``processedAt`` of its
payments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service, Switches
from mappings.batch_answers import build_batch_answer
from mappings.batch_views import build_batch
from tests.house import House
from tests.payday import done, make_batch, make_recipient, open_town

LAST = "2026-03-02T11:30:00.000Z"
PROCESSED = ("2026-03-02T09:00:00.000Z", LAST, "2026-03-01T23:59:59.999Z")


async def complete_batch(house: House, service: Service, **told: Any) -> str:
    """A batch of three payments that has ended; ``told`` is what the service says of it besides."""
    batch = await make_batch(house, await make_recipient(house), "1.00", "2.00", "3.00")
    await done(house, "POST", f"/batches/{batch}/start-processing")
    (held,) = service.world().batches.values()
    held.extra = told
    for payment, moment in zip(held.payments.values(), PROCESSED, strict=True):
        payment.extra = {"processedAt": moment, "batch": {"id": held.id, **told}}
    return batch


@pytest.mark.parametrize("answers", ["full", "bare"])
@pytest.mark.parametrize("inferred", [True, False])
async def test_a_complete_batch_says_when_wherever_its_payments_are_read(
    tmp_path: Path, inferred: bool, answers: Any
) -> None:
    switches = Switches(inferred=inferred, answers=answers, processing_seconds=0)
    service = Service(seed=1, switches=switches)
    async with open_town(tmp_path, service) as (house, _):
        batch = await complete_batch(house, service, completedAt=None)
        whole = (await done(house, "GET", f"/batches/{batch}"))["batch"]
        assert (whole["status"], whole["completedAt"]) == ("complete", LAST)
        for payment in whole["payments"]["payments"]:
            assert payment["batch"]["completedAt"] == LAST
        summary = (await done(house, "GET", f"/batches/{batch}/summary"))["batchSummary"]
        assert (summary["status"], summary["completedAt"]) == ("complete", LAST)
        listed = (await done(house, "GET", f"/batches/{batch}/payments"))["payments"]
        assert {one["batch"]["completedAt"] for one in listed} == {LAST}
        before = len(service.calls("GET", "/v1/batch/*/summary"))
        (row,) = (await done(house, "GET", "/batches"))["batches"]
        read = len(service.calls("GET", "/v1/batch/*/summary")) - before
        # A list with all other fields makes no call for this field alone.
        assert (row["completedAt"], read) == ((None, 0) if inferred else (LAST, 1))


async def test_the_time_that_the_service_tells_stands(tmp_path: Path) -> None:
    service, told = Service(seed=1, switches=Switches(processing_seconds=0)), PROCESSED[0]
    async with open_town(tmp_path, service) as (house, _):
        batch = await complete_batch(house, service, completedAt=told)
        for path in (f"/batches/{batch}", f"/batches/{batch}/summary"):
            body = await done(house, "GET", path)
            assert (body.get("batch") or body["batchSummary"])["completedAt"] == told


@pytest.mark.parametrize(
    ("status", "processed", "expected"),
    [
        ("processing", ["2026-03-02T09:00:00Z"], None),
        ("open", [None], None),
        ("complete", [], None),
        ("complete", [None, "soon", 7, ""], None),
        ("failed", [None, "2026-03-02T09:00:00Z"], "2026-03-02T09:00:00Z"),
        # The later moment, however it is written.
        ("complete", ["2026-03-02T09:00:00Z", "2026-03-02T09:30:00+01:00"], "2026-03-02T09:00:00Z"),
        ("complete", ["2026-03-02T09:00:00.5Z", "2026-03-02T09:00:00"], "2026-03-02T09:00:00.5Z"),
    ],
)
def test_the_latest_of_the_payments_that_tell_a_time_is_taken(
    status: str, processed: list[Any], expected: str | None
) -> None:
    payments = [{"id": f"P-{n}", "processedAt": one} for n, one in enumerate(processed)]
    batch = build_batch("B-1", {}, [], {"id": "B-1", "status": status}, payments)
    assert build_batch_answer(batch)["completedAt"] == expected
