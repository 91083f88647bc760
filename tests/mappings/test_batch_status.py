"""The status of a batch as clients see it, and whether it may still be changed, quoted or started.

Transcripts have one refusal of each operation.
"""

from __future__ import annotations

import pytest

from mappings.batch_views import build_batch, derive_batch_status

STATUSES = {
    "open": ("open", True),
    "pending": ("pending", True),
    "processing": ("processing", False),
    "accepted": ("accepted", False),
    "complete": ("complete", False),
    # The legacy document lacks these.
    "processed": ("complete", False),
    "failed": ("complete", False),
    # An unknown one may be a stage of processing.
    "anything": ("processing", False),
    # Only the balance tells open from pending.
    None: (None, True),
}
"""The service's status, the one that is shown, and whether the batch is editable."""


@pytest.mark.parametrize(("status", "expected"), STATUSES.items(), ids=str)
def test_only_open_and_pending_batches_are_editable(
    status: str | None, expected: tuple[str | None, bool]
) -> None:
    batch = build_batch("B-1", {}, [], {"status": status, "currency": "USD"}, [])
    assert (batch.status, batch.is_editable) == expected


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"completedAt": "2026-01-01T00:00:00.000Z", "sentAt": "2026-01-01T00:00:00.000Z"}, "complete"),
        ({"sentAt": "2026-01-01T00:00:00.000Z"}, "processing"),
        ({"started": "2026-01-01T00:00:00.000Z"}, "processing"),
        ({"status": "open", "started": "2026-01-01T00:00:00.000Z"}, "open"),
    ],
)  # fmt: skip
def test_times_count_if_the_service_gives_no_status(fields: dict[str, str], status: str) -> None:
    assert derive_batch_status(fields.get) == status
