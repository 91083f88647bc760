"""Batch state transitions for signed writes: what they permit, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from structlog.testing import capture_logs

from gateway.auth.signing import Credentials
from gateway.signed_api.senders import Signer
from gateway.signed_api.transitions import (
    SignedWrite,
    SignedWriteGuard,
    WriteTarget,
    WrongBatchStatus,
)
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant
from gateway.storage.freezes import freeze_writes
from gateway.storage.restore_detection import HighWaterMark, set_restored_flag
from gateway.upstream.http_connection import Fence
from mappings import batch_locks
from mappings.effects import CompareAndSet
from mappings.failures import Halted, Unknown, Unreachable
from tests.assembly import open_gateway_parts
from tests.processes import find_free_port
from tests.running_gateway import build_settings
from tests.state import compare_and_set

ACME, BOLT = Tenant("acme", "sandbox"), Tenant("bolt", "sandbox")
CREDENTIALS = Credentials("ACCESS", "a secret")
START_PATH = "/v1/batches/B-1/start-processing"
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)
SENT_BATCH = {"phase": "sent", "version": 3, "upstream": "B-1", "currency": "USD"}


@dataclass
class PassedResponse:
    status: int
    headers: CIMultiDictProxy[str] = field(
        default_factory=lambda: CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json"}))
    )

    async def peek_body(self) -> bytes:
        if self.status < 400:
            return b'{"ok":true}'
        return b'{"ok":false,"errors":[{"code":"invalid_field","message":"Refused."}]}'


@dataclass
class FakeUpstream:
    """A fake upstream that counts calls and answers with the given statuses."""

    object_states: ObjectStateStore
    answers: list[int | Exception] = field(default_factory=list)
    sent_count: int = 0
    batch_state_when_sent: dict[str, Any] = field(default_factory=dict)
    """The recorded batch state when the last request was sent."""

    async def __call__(self, fence: Fence | None) -> PassedResponse:
        if fence and not fence.is_fence_recent:
            await fence.verify_fence()
        self.sent_count += 1
        self.batch_state_when_sent = await load_batch_state(self.object_states)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return PassedResponse(answer)


@dataclass
class TransitionsHarness:
    """A write guard over its own state."""

    store: Store
    object_states: ObjectStateStore
    transitions: SignedWriteGuard
    service: FakeUpstream

    async def send_write(self, request: SignedWrite, *answers: int | Exception) -> int:
        self.service.answers = list(answers)
        return (await self.transitions.send_write(request, self.service)).status


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TransitionsHarness]:
    # Nothing listens there, so the journal's own reads fail.
    upstream = {"timeout_seconds": 1}
    settings = build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}", upstream=upstream)
    async with open_gateway_parts(settings) as parts:
        operation_repository = parts.journal.operations
        transitions = SignedWriteGuard(
            parts.object_states,
            operation_repository,
            parts.guard,
            lambda: NOW,
        )
        transitions_harness = TransitionsHarness(
            parts.store, parts.object_states, transitions, FakeUpstream(parts.object_states)
        )
        yield transitions_harness


@pytest.fixture
def object_states(harness: TransitionsHarness) -> ObjectStateStore:
    return harness.object_states


def build_write(target: str = START_PATH, tenant: Tenant | None = ACME) -> SignedWrite:
    timestamp = int(NOW.timestamp())
    signer = Signer(tenant, CREDENTIALS, (), ()) if tenant else None
    return SignedWrite(signer, "sandbox", WriteTarget("POST", target), timestamp, "a request")


async def load_batch_state(
    object_states: ObjectStateStore, batch: str = "B-1", tenant: Tenant = ACME
) -> dict[str, Any]:
    return await object_states.load(tenant, "batch", batch)


# Superseded batches.


@pytest.mark.parametrize("target", [START_PATH, "/v1/batches/B-1/payments"])
async def test_answered_write_leaves_nothing_in_memory(
    harness: TransitionsHarness, target: str
) -> None:
    guard = harness.transitions._idempotency_guard
    assert await harness.send_write(build_write(target)) == 200
    assert not guard.deliveries.pending


async def test_refused_recipient_change_does_not_undo_another_with_its_request_id(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    recipient = "R-ABCDEFGH12345678"
    write = build_write(f"/v1/recipients/{recipient}")

    async def refuse_after_another(fence: Fence | None) -> PassedResponse:
        assert fence is not None
        await fence.verify_fence()
        assert await harness.send_write(write) == 200
        return PassedResponse(400)

    assert (await harness.transitions.send_write(write, refuse_after_another)).status == 400
    assert await object_states.load(ACME, batch_locks.SIGNED_CHANGES_KIND, recipient)


async def supersede_batch(object_states: ObjectStateStore) -> None:
    """Record an edit of a batch at a service that has no edit operation."""
    mark_superseded = CompareAndSet("alias", "B-1", {"abandoned": True})
    draft = {"phase": "draft", "upstream": None, "version": 4, "abandoned": ["B-1"]}
    await object_states.compare_and_set_all(
        ACME, [CompareAndSet("batch", "B-1", draft, linked=(mark_superseded,))]
    )


@pytest.mark.parametrize("action", ["start-processing", "generate-quote", "payments", ""])
async def test_batch_superseded_between_read_and_record_is_not_written(
    harness: TransitionsHarness,
    object_states: ObjectStateStore,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original_load = ObjectStateStore.load
    number = read_count = 0

    async def load_and_supersede(
        self: ObjectStateStore,
        tenant: Tenant,
        kind: str,
        id: str,  # noqa: A002
    ) -> dict[str, Any]:
        nonlocal read_count
        object_state = await original_load(self, tenant, kind, id)
        read_count += 1
        if read_count == number and not harness.service.sent_count:
            await supersede_batch(object_states)
        return object_state

    monkeypatch.setattr(ObjectStateStore, "load", load_and_supersede)
    while number <= read_count:  # the last read is that of the fake upstream
        await compare_and_set(
            object_states, ACME, "batch", "B-1", {**SENT_BATCH, "abandoned": None}
        )
        await compare_and_set(object_states, ACME, "alias", "B-1", {"abandoned": None})
        number, read_count, harness.service.sent_count = number + 1, 0, 0
        write = replace(build_write(f"/v1/batches/B-1/{action}"), request_id=f"request {number}")
        with suppress(WrongBatchStatus):
            await harness.send_write(write)
        was_superseded = bool(
            (await original_load(object_states, ACME, "alias", "B-1")).get("abandoned")
        )
        assert harness.service.sent_count == (not was_superseded), number
    assert number > 2


async def test_superseded_replacement_batch_is_refused(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    await compare_and_set(object_states, ACME, "batch", "B-0", {**SENT_BATCH, "upstream": "B-2"})
    await compare_and_set(object_states, ACME, "alias", "B-1", {"id": "B-0", "abandoned": True})
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write())
    assert (await load_batch_state(object_states, "B-0"))["phase"] == "sent"


async def test_object_state_of_another_tenant_has_no_effect(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    await compare_and_set(object_states, BOLT, "alias", "B-1", {"abandoned": True})
    await compare_and_set(object_states, BOLT, "batch", "B-1", {"phase": "draft", "version": 3})
    assert await harness.send_write(build_write()) == 200


@pytest.mark.parametrize(
    ("tenant", "is_refused"), [(ACME, True), (BOLT, True), (Tenant("acme", "live"), False)]
)
async def test_unknown_key_is_refused_any_superseded_batch_of_its_environment(
    harness: TransitionsHarness,
    object_states: ObjectStateStore,
    tenant: Tenant,
    *,
    is_refused: bool,
) -> None:
    await compare_and_set(object_states, tenant, "alias", "B-1", {"abandoned": True})
    await compare_and_set(object_states, tenant, "alias", "B-2", {"id": "B-0"})
    if is_refused:
        with pytest.raises(WrongBatchStatus):
            await harness.send_write(build_write(tenant=None))
    else:
        assert await harness.send_write(build_write(tenant=None)) == 200
    assert (
        await harness.send_write(build_write("/v1/batches/B-2/start-processing", tenant=None))
        == 200
    )


async def test_start_with_unknown_key_records_nothing(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    await compare_and_set(object_states, ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(tenant=None)) == 200
    assert (
        harness.service.batch_state_when_sent == await load_batch_state(object_states) == SENT_BATCH
    )


OTHER_WRITE_TARGETS = [
    "/v1/batches",
    "/v1/recipients/B-1/start-processing",
    "/v1/profile/batches/B-1/start-processing",
    "/v1/batches/B-1/payments",
    "/v1/batches/B-1/start-processing/now",
    "/v1/batches/B-1?x=/start-processing",
]


@pytest.mark.parametrize("target", OTHER_WRITE_TARGETS)
async def test_other_writes_record_nothing(
    harness: TransitionsHarness, object_states: ObjectStateStore, target: str
) -> None:
    await compare_and_set(object_states, ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(target), 500) == 500
    with pytest.raises(Unreachable):
        await harness.send_write(build_write(target), Unreachable("refused"))
    assert (
        harness.service.batch_state_when_sent == await load_batch_state(object_states) == SENT_BATCH
    )


# Changes in progress.


async def load_open_changes(harness: TransitionsHarness) -> list[Any]:
    return batch_locks.list_open_signed_changes(
        await harness.object_states.load(ACME, batch_locks.SIGNED_CHANGES_KIND, "B-1")
    )


@pytest.mark.parametrize(
    ("answer", "open_count"),
    [(200, 0), (404, 0), (Unreachable("no connection"), 0), (502, 1), (Unknown("lost"), 1)],
)
async def test_change_is_open_while_it_may_still_be_executed(
    harness: TransitionsHarness, answer: int | Exception, open_count: int
) -> None:
    payment_write = build_write("/v1/batches/B-1/payments")
    with suppress(Unreachable, Unknown):
        await harness.send_write(payment_write, answer)
    assert len(await load_open_changes(harness)) == open_count
    assert await harness.send_write(payment_write) == 200
    assert len(await load_open_changes(harness)) == open_count


async def test_concurrent_changes_do_not_exclude_each_other(harness: TransitionsHarness) -> None:
    payment_write = build_write("/v1/batches/B-1/payments")
    are_all_sent = asyncio.Event()

    async def wait_for_others(fence: Fence | None) -> PassedResponse:
        response = await harness.service(fence)
        if harness.service.sent_count == 20:
            are_all_sent.set()
        await are_all_sent.wait()
        return response

    responses = await asyncio.gather(
        *(harness.transitions.send_write(payment_write, wait_for_others) for _ in range(20))
    )
    assert [response.status for response in responses] == [200] * 20
    assert await load_open_changes(harness) == []


@pytest.mark.parametrize("phase", ["editing", "making", "deleting"])
async def test_change_is_not_sent_during_an_edit_that_may_supersede_the_batch(
    harness: TransitionsHarness, object_states: ObjectStateStore, phase: str
) -> None:
    facts = {**SENT_BATCH, "phase": phase, "since": NOW.isoformat()}
    await compare_and_set(object_states, ACME, "batch", "B-1", facts)
    with pytest.raises(Halted):
        await harness.send_write(build_write("/v1/batches/B-1/payments"))
    assert not harness.service.sent_count


# Freezes.


@pytest.mark.parametrize(("scope", "is_refused"), [(Tenant("", "sandbox"), True), (ACME, False)])
async def test_write_with_unknown_key_is_frozen_with_its_environment(
    harness: TransitionsHarness, scope: Tenant, *, is_refused: bool
) -> None:
    await freeze_writes(harness.store, scope)
    if is_refused:
        with pytest.raises(Halted):
            await harness.send_write(build_write(tenant=None))
    else:
        assert await harness.send_write(build_write(tenant=None)) == 200


async def test_write_with_unknown_key_starts_nothing_on_restored_state(
    harness: TransitionsHarness,
) -> None:
    await set_restored_flag(harness.store, HighWaterMark(0, 1))
    with pytest.raises(Halted):
        await harness.send_write(build_write(tenant=None))
    assert await harness.send_write(build_write(OTHER_WRITE_TARGETS[0], tenant=None)) == 200


# Starts.


@pytest.mark.parametrize("phase", ["draft", "deleted"])
async def test_batch_in_other_phase_is_not_started(
    harness: TransitionsHarness, object_states: ObjectStateStore, phase: str
) -> None:
    batch_state = {**SENT_BATCH, "phase": phase, "since": None}
    if phase == "draft":  # the service does not have it
        batch_state["upstream"] = None
    await compare_and_set(object_states, ACME, "batch", "B-1", batch_state)
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write())
    assert (await load_batch_state(object_states))["phase"] == phase
    assert not harness.service.sent_count


@pytest.mark.parametrize("phase", ["editing", "quoting", "making", "deleting"])
async def test_start_waits_for_running_edit_and_outlasts_a_slow_one(
    harness: TransitionsHarness, object_states: ObjectStateStore, phase: str
) -> None:
    reserved_state = {**SENT_BATCH, "phase": phase, "since": NOW.isoformat()}
    await compare_and_set(object_states, ACME, "batch", "B-1", reserved_state)
    start_task = asyncio.ensure_future(harness.send_write(build_write()))
    await asyncio.sleep(0.1)
    await compare_and_set(object_states, ACME, "batch", "B-1", {"phase": "sent", "since": None})
    assert await start_task == 200
    await compare_and_set(object_states, ACME, "batch", "B-1", reserved_state)
    with pytest.raises(Halted):
        await harness.send_write(replace(build_write(), request_id="another"))
    assert (await load_batch_state(object_states))["phase"] == phase
    assert harness.service.sent_count == 1


async def test_replacement_batch_is_reserved_by_its_original_id(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    await compare_and_set(object_states, ACME, "batch", "B-0", SENT_BATCH)
    await compare_and_set(object_states, ACME, "alias", "B-1", {"id": "B-0"})
    assert await harness.send_write(build_write()) == 200
    assert (await load_batch_state(object_states, "B-0"))["version"] == 4
    assert await load_batch_state(object_states, "B-1") == {}


async def test_foreign_batch_is_recorded_once_started_and_dropped_if_refused(
    harness: TransitionsHarness, object_states: ObjectStateStore
) -> None:
    assert await harness.send_write(build_write(), 400) == 400
    assert harness.service.batch_state_when_sent["phase"] == "starting"
    assert await load_batch_state(object_states) == {}
    assert await harness.send_write(build_write()) == 200
    assert await load_batch_state(object_states) == {
        "phase": "sent",
        "upstream": "B-1",
        "version": 1,
        "elsewhere": True,
        "started": "2026-11-20T12:30:15.123Z",
    }


# Without a database.


async def test_no_write_is_sent_without_object_states(
    harness: TransitionsHarness, tmp_path: Path
) -> None:
    (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
    for target in (START_PATH, "/v1/batches/B-1/payments", "/v1/recipients/R-1"):
        with pytest.raises(StoreUnavailable):
            await harness.send_write(build_write(target))
    assert not harness.service.sent_count


async def test_answer_is_returned_if_object_state_update_fails(
    harness: TransitionsHarness, object_states: ObjectStateStore, tmp_path: Path
) -> None:
    await compare_and_set(object_states, ACME, "batch", "B-1", SENT_BATCH)

    async def break_database(fence: Fence | None) -> PassedResponse:
        (tmp_path / "gateway.db").rename(tmp_path / "elsewhere.db")
        return PassedResponse(200)

    with capture_logs() as log_entries:
        assert (await harness.transitions.send_write(build_write(), break_database)).status == 200
    assert "database_unavailable" in [line["event"] for line in log_entries]
