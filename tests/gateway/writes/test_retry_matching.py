"""Which operations a request has to wait for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import structs

from gateway.storage import Tenant
from gateway.storage.operation_records import OperationRecord
from gateway.writes.retry_matching import is_blocking
from gateway.writes.states import OPERATION_STATES

RECORD = OperationRecord(
    "one",
    Tenant("acme", "live"),
    "key",
    "key",
    "update_payment",
    "request",
    "fingerprint",
    datetime(2026, 11, 1, tzinfo=UTC),
    object_ids=("B-1",),
)


@pytest.mark.parametrize("state", OPERATION_STATES)
def test_only_unfinished_operations_on_the_same_object_block(state: str) -> None:
    """Also an answered one may be among the related operations, if it ended after the request came."""
    row = structs.replace(RECORD, id="other", state=state)
    assert is_blocking(row, RECORD) == (state in ("running", "unsettled"))
    assert not is_blocking(structs.replace(row, object_ids=("B-2",)), RECORD)
