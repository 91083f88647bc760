"""Batch state transitions for signed writes: what the ledger permits and records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.auth.signing import Credentials
from gateway.signed_api.transitions import SignedWrite, SignedWriteGuard, WrongBatchStatus
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant
from gateway.storage.freezes import freeze_writes
from gateway.storage.restore_detection import HighWaterMark, flag_restored
from gateway.upstream.send_attempt import Fence
from mappings import batch_locks
from mappings.effects import CompareAndSet
from mappings.failures import Halted, Unknown, Unreachable
from tests.assembly import open_gateway_parts
from tests.processes import find_free_port
from tests.running_gateway import build_settings

ACME, BOLT = Tenant("acme", "sandbox"), Tenant("bolt", "sandbox")
CREDENTIALS = Credentials("ACCESS", "a secret")
START_PATH = "/v1/batches/B-1/start-processing"
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)
SENT_BATCH = {"phase": "sent", "version": 3, "upstream": "B-1", "currency": "USD"}


@dataclass
class PassedResponse:
    status: int


@dataclass
class FakeUpstream:
    """A fake upstream that counts calls and answers with the given statuses."""

    ledger: ObjectStateStore
    answers: list[int | Exception] = field(default_factory=list)
    sent_count: int = 0
    batch_state_when_sent: dict[str, Any] = field(default_factory=dict)
    """What the ledger knew of the batch when it left."""

    async def __call__(self, turn: Fence | None) -> PassedResponse:
        self.sent_count += 1
        self.batch_state_when_sent = await load_batch_state(self.ledger)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return PassedResponse(answer)


@dataclass
class TransitionsHarness:
    """Transitions over their own state."""

    store: Store
    ledger: ObjectStateStore
    transitions: SignedWriteGuard
    service: FakeUpstream
    clock_offset: timedelta = timedelta()
    """Of NOW."""

    async def send_write(self, request: SignedWrite, *answers: int | Exception) -> int:
        self.service.answers = list(answers)
        return (await self.transitions.send_write(request, self.service)).status


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TransitionsHarness]:
    # Nothing listens there, so the journal's own reads fail.
    upstream = {"timeout_seconds": 1}
    settings = build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}", upstream=upstream)
    async with open_gateway_parts(settings) as parts:
        rows = parts.journal.operations
        transitions = SignedWriteGuard(
            parts.ledger, rows, parts.guard, lambda: NOW + gate.clock_offset, 1.0
        )
        gate = TransitionsHarness(
            parts.store, parts.ledger, transitions, FakeUpstream(parts.ledger)
        )
        yield gate


@pytest.fixture
def ledger(harness: TransitionsHarness) -> ObjectStateStore:
    return harness.ledger


def build_write(target: str = START_PATH, owner: Tenant | None = ACME) -> SignedWrite:
    stamp = int(NOW.timestamp())
    return SignedWrite(owner, CREDENTIALS if owner else None, "sandbox", target, stamp, "a request")


async def load_batch_state(
    ledger: ObjectStateStore, batch: str = "B-1", owner: Tenant = ACME
) -> dict[str, Any]:
    return await ledger.load(owner, "batch", batch)


# Superseded batches.

WRITE_TARGETS = [
    START_PATH,
    "/v1/batches/B-1",
    "/v1/batches/B-1/",
    "/v1/batches/B-1/payments",
    "/v1/batches/B-1/payments/P-1",
    "/v1/batches/B-1/generate-quote?x=1",
    "/v1/batch/B-1/start-processing",
    "/v1/batch/B-1/summary",
    "/v1//batches//B-1/start-processing/",
    "/v1/Batches/%42-1/Start-Processing",
    "/v1/batches;x/B-1;y/start-processing;z",
]


@pytest.mark.parametrize("target", WRITE_TARGETS)
async def test_superseded_batch_is_not_written_by_any_id(
    harness: TransitionsHarness, ledger: ObjectStateStore, target: str
) -> None:
    await ledger.compare_and_set(ACME, "alias", "B-1", {"abandoned": True})
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write(target))
    assert not harness.service.sent_count
    await ledger.compare_and_set(ACME, "alias", "B-1", {"abandoned": None})
    assert await harness.send_write(build_write(target)) == 200


async def supersede_batch(ledger: ObjectStateStore) -> None:
    """Record an edit of a batch at a service that has no edit operation."""
    left = CompareAndSet("alias", "B-1", {"abandoned": True})
    draft = {"phase": "draft", "upstream": None, "version": 4, "abandoned": ["B-1"]}
    await ledger.compare_and_set_all(ACME, [CompareAndSet("batch", "B-1", draft, linked=(left,))])


@pytest.mark.parametrize("action", ["start-processing", "generate-quote", "payments", ""])
async def test_batch_superseded_between_read_and_record_is_not_written(
    harness: TransitionsHarness,
    ledger: ObjectStateStore,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = ObjectStateStore.load
    number = reads = 0

    async def recall(self: ObjectStateStore, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002
        nonlocal reads
        facts = await plain(self, owner, kind, id)
        reads += 1
        if reads == number and not harness.service.sent_count:
            await supersede_batch(ledger)
        return facts

    monkeypatch.setattr(ObjectStateStore, "load", recall)
    while number <= reads:  # the last read is that of the fake upstream
        await ledger.compare_and_set(ACME, "batch", "B-1", {**SENT_BATCH, "abandoned": None})
        await ledger.compare_and_set(ACME, "alias", "B-1", {"abandoned": None})
        number, reads, harness.service.sent_count = number + 1, 0, 0
        its = replace(build_write(f"/v1/batches/B-1/{action}"), request_id=f"request {number}")
        with suppress(WrongBatchStatus):
            await harness.send_write(its)
        was_superseded = bool((await plain(ledger, ACME, "alias", "B-1")).get("abandoned"))
        assert harness.service.sent_count == (not was_superseded), number
    assert number > 2


async def test_superseded_replacement_batch_is_refused(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-0", {**SENT_BATCH, "upstream": "B-2"})
    await ledger.compare_and_set(ACME, "alias", "B-1", {"id": "B-0", "abandoned": True})
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write())
    assert (await load_batch_state(ledger, "B-0"))["phase"] == "sent"


async def test_ledger_of_another_tenant_has_no_effect(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(BOLT, "alias", "B-1", {"abandoned": True})
    await ledger.compare_and_set(BOLT, "batch", "B-1", {**SENT_BATCH, "phase": "draft"})
    assert await harness.send_write(build_write()) == 200


@pytest.mark.parametrize(
    ("owner", "is_refused"), [(ACME, True), (BOLT, True), (Tenant("acme", "live"), False)]
)
async def test_unknown_key_is_refused_any_superseded_batch_of_its_environment(
    harness: TransitionsHarness, ledger: ObjectStateStore, owner: Tenant, *, is_refused: bool
) -> None:
    await ledger.compare_and_set(owner, "alias", "B-1", {"abandoned": True})
    await ledger.compare_and_set(owner, "alias", "B-2", {"id": "B-0"})
    if is_refused:
        with pytest.raises(WrongBatchStatus):
            await harness.send_write(build_write(owner=None))
    else:
        assert await harness.send_write(build_write(owner=None)) == 200
    assert (
        await harness.send_write(build_write("/v1/batches/B-2/start-processing", owner=None)) == 200
    )


async def test_start_with_unknown_key_records_nothing(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(owner=None)) == 200
    assert harness.service.batch_state_when_sent == await load_batch_state(ledger) == SENT_BATCH


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
    harness: TransitionsHarness, ledger: ObjectStateStore, target: str
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(target), 500) == 500
    with pytest.raises(Unreachable):
        await harness.send_write(build_write(target), Unreachable("refused"))
    assert harness.service.batch_state_when_sent == await load_batch_state(ledger) == SENT_BATCH


# Changes in progress.


async def load_signed_changes(gate: TransitionsHarness) -> tuple[int, bool]:
    """Return how many changes are in progress, and whether one is lost."""
    signed, now = (
        await gate.ledger.load(ACME, batch_locks.SIGNED_CHANGES_KIND, "B-1"),
        NOW + gate.clock_offset,
    )
    return len(
        batch_locks.list_active_signed_changes(signed, now)
    ), not batch_locks.has_no_lost_signed_change(now, signed)


async def test_lost_change_ends_at_its_deadline_despite_later_changes(
    harness: TransitionsHarness,
) -> None:
    adds = build_write("/v1/batches/B-1/payments")
    with pytest.raises(Unknown):
        await harness.send_write(adds, Unknown("lost"))
    assert await load_signed_changes(harness) == (0, True)
    for seconds in (40, 80):
        harness.clock_offset = timedelta(seconds=seconds)
        assert await harness.send_write(adds) == 200
        assert await load_signed_changes(harness) == (0, True)
    harness.clock_offset = timedelta(seconds=batch_locks.SIGNED_CHANGE_TTL_SECONDS)
    assert await load_signed_changes(harness) == (0, False)
    assert await harness.send_write(adds, 502) == 502
    assert await load_signed_changes(harness) == (0, True)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_interrupted_change_may_still_be_executed(
    harness: TransitionsHarness, answer: BaseException
) -> None:
    async def cut_off(_turn: Fence | None) -> PassedResponse:
        raise answer

    with pytest.raises(type(answer)):
        await harness.transitions.send_write(build_write("/v1/batches/B-1/payments"), cut_off)
    assert await load_signed_changes(harness) == (0, True)


async def test_unsent_change_has_ended(harness: TransitionsHarness) -> None:
    with pytest.raises(Unreachable):
        await harness.send_write(
            build_write("/v1/batches/B-1/payments"), Unreachable("no connection")
        )
    assert await load_signed_changes(harness) == (0, False)


async def test_change_that_ends_after_its_deadline_ends_no_other_change(
    harness: TransitionsHarness,
) -> None:
    adds, ends = build_write("/v1/batches/B-1/payments"), [asyncio.Event(), asyncio.Event()]

    async def begun(end: asyncio.Event) -> asyncio.Future[PassedResponse]:
        left = asyncio.Event()

        async def long(turn: Fence | None) -> PassedResponse:
            left.set()
            await end.wait()
            return await harness.service(turn)

        sending = asyncio.ensure_future(harness.transitions.send_write(adds, long))
        await left.wait()
        return sending

    first = await begun(ends[0])
    harness.clock_offset = timedelta(seconds=batch_locks.SIGNED_CHANGE_TTL_SECONDS)
    assert await load_signed_changes(harness) == (0, False)
    second = await begun(ends[1])
    ends[0].set()
    await first
    assert await load_signed_changes(harness) == (1, False)
    ends[1].set()
    await second
    assert await load_signed_changes(harness) == (0, False)


class SlowCountingLedger(ObjectStateStore):
    """A ledger whose reads are outdated when they return."""

    record_count = 0

    async def load(self, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - as it is called
        facts = await super().load(owner, kind, id)
        await asyncio.sleep(0.01)
        return facts

    async def compare_and_set_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        self.record_count += 1
        await super().compare_and_set_all(owner, records)


async def test_concurrent_changes_do_not_exclude_each_other(tmp_path: Path) -> None:
    async with open_gateway_parts(
        build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    ) as parts:
        ledger, rows = SlowCountingLedger(parts.store), parts.journal.operations
        transitions, service = (
            SignedWriteGuard(ledger, rows, parts.guard, lambda: NOW, 30.0),
            FakeUpstream(ledger),
        )
        adds = build_write("/v1/batches/B-1/payments")
        await asyncio.gather(*(transitions.send_write(adds, service) for _ in range(20)))
        assert (service.sent_count, ledger.record_count) == (20, 40), (
            "one record at start and one at end of each change, without retries"
        )


class HangingLedger(ObjectStateStore):
    """A ledger whose state stops answering when ``hangs`` is set."""

    is_hanging = False

    async def compare_and_set_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        if self.is_hanging:
            await asyncio.Event().wait()
        await super().compare_and_set_all(owner, records)


async def test_answer_does_not_wait_for_hanging_storage(tmp_path: Path) -> None:
    """The client would give up, and add the payment again."""
    async with open_gateway_parts(
        build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    ) as parts:
        ledger, rows = HangingLedger(parts.store), parts.journal.operations
        transitions = SignedWriteGuard(ledger, rows, parts.guard, lambda: NOW, 1.0)

        async def hangs(turn: Fence | None) -> PassedResponse:
            ledger.is_hanging = True
            return PassedResponse(200)

        async with asyncio.timeout(20):
            passed = await transitions.send_write(build_write("/v1/batches/B-1/payments"), hangs)
        assert passed.status == 200


# Freezes.


@pytest.mark.parametrize("scope", [Tenant("", ""), Tenant("acme", ""), Tenant("", "sandbox"), ACME])
@pytest.mark.parametrize("target", [START_PATH, *OTHER_WRITE_TARGETS])
async def test_frozen_write_is_not_sent(
    harness: TransitionsHarness, scope: Tenant, target: str
) -> None:
    await freeze_writes(harness.store, scope)
    with pytest.raises(Halted):
        await harness.send_write(build_write(target))
    assert not harness.service.sent_count
    assert await load_batch_state(harness.ledger) == {}


@pytest.mark.parametrize(("scope", "is_refused"), [(Tenant("", "sandbox"), True), (ACME, False)])
async def test_write_with_unknown_key_is_frozen_with_its_environment(
    harness: TransitionsHarness, scope: Tenant, *, is_refused: bool
) -> None:
    await freeze_writes(harness.store, scope)
    if is_refused:
        with pytest.raises(Halted):
            await harness.send_write(build_write(owner=None))
    else:
        assert await harness.send_write(build_write(owner=None)) == 200


async def test_write_with_unknown_key_starts_nothing_on_restored_state(
    harness: TransitionsHarness,
) -> None:
    await flag_restored(harness.store, HighWaterMark(0, 1))
    with pytest.raises(Halted):
        await harness.send_write(build_write(owner=None))
    assert await harness.send_write(build_write(OTHER_WRITE_TARGETS[0], owner=None)) == 200


# Starts.


async def test_start_reserves_batch_and_is_recorded_when_answered(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write()) == 200
    assert harness.service.batch_state_when_sent == {
        **SENT_BATCH,
        "phase": "starting",
        "since": NOW.isoformat(),
    }
    assert await load_batch_state(ledger) == {
        **SENT_BATCH,
        "version": 4,
        "started": "2026-11-20T12:30:15.123Z",
    }


@pytest.mark.parametrize("status", [400, 401, 403, 404, 406, 429])
async def test_refused_start_restores_batch_state(
    harness: TransitionsHarness, ledger: ObjectStateStore, status: int
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(), status) == status
    assert await load_batch_state(ledger) == SENT_BATCH
    with pytest.raises(Unreachable):
        await harness.send_write(build_write(), Unreachable("refused"))
    assert await load_batch_state(ledger) == SENT_BATCH


@pytest.mark.parametrize("status", [302, 500, 502, 504, 524])
async def test_start_of_unknown_outcome_keeps_batch_reserved(
    harness: TransitionsHarness, ledger: ObjectStateStore, status: int
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)
    assert await harness.send_write(build_write(), status) == status
    with pytest.raises(Unknown):
        await harness.send_write(replace(build_write(), request_id="another"))
    assert harness.service.sent_count == 1
    assert (await load_batch_state(ledger))["phase"] == "starting"


@pytest.mark.parametrize("phase", ["draft", "deleted", "starting"])
async def test_batch_in_other_phase_is_not_started(
    harness: TransitionsHarness, ledger: ObjectStateStore, phase: str
) -> None:
    since = None if phase in ("draft", "deleted") else NOW.isoformat()
    await ledger.compare_and_set(
        ACME, "batch", "B-1", {**SENT_BATCH, "phase": phase, "since": since}
    )
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write())
    assert (await load_batch_state(ledger))["phase"] == phase
    assert not harness.service.sent_count


@pytest.mark.parametrize("phase", ["editing", "quoting", "making", "deleting"])
async def test_start_waits_for_running_edit_and_outlasts_a_slow_one(
    harness: TransitionsHarness, ledger: ObjectStateStore, phase: str
) -> None:
    held = {**SENT_BATCH, "phase": phase, "since": NOW.isoformat()}
    await ledger.compare_and_set(ACME, "batch", "B-1", held)
    starting = asyncio.ensure_future(harness.send_write(build_write()))
    await asyncio.sleep(0.1)
    await ledger.compare_and_set(ACME, "batch", "B-1", {"phase": "sent", "since": None})
    assert await starting == 200
    await ledger.compare_and_set(ACME, "batch", "B-1", held)
    with pytest.raises(Halted):
        await harness.send_write(replace(build_write(), request_id="another"))
    assert (await load_batch_state(ledger))["phase"] == phase
    assert harness.service.sent_count == 1


async def test_replacement_batch_is_reserved_by_its_original_id(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-0", SENT_BATCH)
    await ledger.compare_and_set(ACME, "alias", "B-1", {"id": "B-0"})
    assert await harness.send_write(build_write()) == 200
    assert (await load_batch_state(ledger, "B-0"))["version"] == 4
    assert await load_batch_state(ledger, "B-1") == {}


async def test_replaced_batch_is_not_started(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", {**SENT_BATCH, "upstream": "B-2"})
    with pytest.raises(WrongBatchStatus):
        await harness.send_write(build_write())
    assert (await load_batch_state(ledger))["phase"] == "sent"


async def test_foreign_batch_is_recorded_once_started_and_dropped_if_refused(
    harness: TransitionsHarness, ledger: ObjectStateStore
) -> None:
    assert await harness.send_write(build_write(), 400) == 400
    assert harness.service.batch_state_when_sent["phase"] == "starting"
    assert await load_batch_state(ledger) == {}
    assert await harness.send_write(build_write()) == 200
    assert await load_batch_state(ledger) == {
        "phase": "sent",
        "upstream": "B-1",
        "version": 1,
        "elsewhere": True,
        "started": "2026-11-20T12:30:15.123Z",
    }


# Without a database.


async def test_no_write_is_sent_without_ledger(harness: TransitionsHarness, tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
    for target in (START_PATH, "/v1/batches/B-1/payments", "/v1/recipients/R-1"):
        with pytest.raises(StoreUnavailable):
            await harness.send_write(build_write(target))
    assert not harness.service.sent_count


async def test_answer_is_returned_if_ledger_update_fails(
    harness: TransitionsHarness, ledger: ObjectStateStore, tmp_path: Path
) -> None:
    await ledger.compare_and_set(ACME, "batch", "B-1", SENT_BATCH)

    async def breaks(turn: Fence | None) -> PassedResponse:
        (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
        return PassedResponse(200)

    with capture_logs() as logged:
        assert (await harness.transitions.send_write(build_write(), breaks)).status == 200
    assert "database_unavailable" in [line["event"] for line in logged]
