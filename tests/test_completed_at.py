"""``completedAt`` of a batch if the service does not return it: the latest ``processedAt`` of its
payments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappings.batch_views import build_batch, build_legacy_batch
from tests.payouts import (
    create_batch,
    create_recipient,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Service, ServiceOptions

LAST_PROCESSED_AT = "2026-03-02T11:30:00.000Z"
PROCESSED_AT = ("2026-03-02T09:00:00.000Z", LAST_PROCESSED_AT, "2026-03-01T23:59:59.999Z")


async def complete_batch(gateway: GatewayUnderTest, service: Service, **service_fields: Any) -> str:
    """Creates a complete batch of three payments; ``service_fields`` are set on the batch at the service."""
    batch = await create_batch(gateway, await create_recipient(gateway), "1.00", "2.00", "3.00")
    await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
    (service_batch,) = service.find_or_create_tenant().batches.values()
    service_batch.overrides = service_fields
    for payment, processed_at in zip(service_batch.payments.values(), PROCESSED_AT, strict=True):
        payment.overrides = {
            "processedAt": processed_at,
            "batch": {"id": service_batch.id, **service_fields},
        }
    return batch


@pytest.mark.parametrize("answers", ["full", "bare"])
@pytest.mark.parametrize("inferred", [True, False])
async def test_complete_batch_has_completed_at_wherever_its_payments_are_read(
    tmp_path: Path, inferred: bool, answers: Any
) -> None:
    service_options = ServiceOptions(inferred=inferred, answers=answers, processing_seconds=0)
    service = Service(seed=1, options=service_options)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await complete_batch(gateway, service, completedAt=None)
        batch_body = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"]
        assert (batch_body["status"], batch_body["completedAt"]) == ("complete", LAST_PROCESSED_AT)
        for payment in batch_body["payments"]["payments"]:
            assert payment["batch"]["completedAt"] == LAST_PROCESSED_AT
        summary = (await request_successfully(gateway, "GET", f"/batches/{batch}/summary"))[
            "batchSummary"
        ]
        assert (summary["status"], summary["completedAt"]) == ("complete", LAST_PROCESSED_AT)
        listed_payments = (
            await request_successfully(gateway, "GET", f"/batches/{batch}/payments")
        )["payments"]
        assert {entry["batch"]["completedAt"] for entry in listed_payments} == {LAST_PROCESSED_AT}
        summary_count = len(service.list_requests("GET", "/v1/batch/*/summary"))
        (row,) = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        read = len(service.list_requests("GET", "/v1/batch/*/summary")) - summary_count
        # A list with all other fields makes no call for this field alone.
        assert (row["completedAt"], read) == ((None, 0) if inferred else (LAST_PROCESSED_AT, 1))


async def test_completed_at_of_the_service_is_kept(tmp_path: Path) -> None:
    service, completed_at = (
        Service(seed=1, options=ServiceOptions(processing_seconds=0)),
        PROCESSED_AT[0],
    )
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await complete_batch(gateway, service, completedAt=completed_at)
        for path in (f"/batches/{batch}", f"/batches/{batch}/summary"):
            body = await request_successfully(gateway, "GET", path)
            assert (body.get("batch") or body["batchSummary"])["completedAt"] == completed_at


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
def test_completed_at_is_the_latest_processed_at(
    status: str, processed: list[Any], expected: str | None
) -> None:
    payments = [{"id": f"P-{n}", "processedAt": value} for n, value in enumerate(processed)]
    batch = build_batch("B-1", {}, [], {"id": "B-1", "status": status}, payments)
    assert build_legacy_batch(batch)["completedAt"] == expected
