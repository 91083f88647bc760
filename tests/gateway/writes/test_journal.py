"""Operation executions whose progress could not be recorded."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from gateway.http.request_reader import generate_hex_id
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, open_store
from gateway.storage.audit_log import ALL_TENANTS
from gateway.storage.freezes import freeze_writes
from gateway.storage.operation_records import OwnershipLostError
from gateway.storage.restore_detection import NO_MARK, set_restored_flag
from gateway.upstream.clock import ServiceClock
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.states import CONFIRMED, SENT
from mappings import OPERATIONS
from mappings.effects import Call, CompareAndSet, Confirmed, LoadFacts, Request
from mappings.failures import Conflict, Halted, Unknown
from tests.running_gateway import build_settings
from tests.simulation.assembly import API_KEY
from tests.state import create_database
from tests.test_database_faults import move_database

CREATE = next(
    listed_operation
    for listed_operation in OPERATIONS
    if listed_operation.name == "create_recipient"
)
CALL = Call(
    "POST", "/recipients", {"email": "ada@example.com"}, reconcile=lambda _sending: iter(())
)  # type: ignore[arg-type]
CONFIRMED_CREATE = Confirmed({"recipient": {"id": "R-1"}}, object_id="R-1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    settings = build_settings(tmp_path, "http://127.0.0.1:1")
    async with open_store(create_database(settings.state)) as store:
        yield store


@pytest.fixture
def object_states(store: Store) -> ObjectStateStore:
    return ObjectStateStore(store)


@pytest.fixture
def journal(store: Store, object_states: ObjectStateStore) -> Journal:
    return Journal(store, object_states, ServiceClock())


async def send_create(journal: Journal) -> OperationExecution:
    """Start an execution whose create was sent and not answered."""
    request = Request(now=datetime.now(UTC), seed=str(random.random()), body={"type": "individual"})
    operation = journal.build_record(API_KEY, CREATE, request, "a-request")
    execution = journal.start_execution(operation, CREATE, request)
    await execution.save_write(CALL)
    return execution


async def resume_execution(journal: Journal, execution: OperationExecution) -> OperationExecution:
    """Resume the execution in the same process."""
    journal.release(execution)
    operation_record = await journal.operations.find_operation(execution.operation_record.id)
    assert operation_record is not None
    resumed_execution = await journal.take_over(operation_record, CREATE)
    assert resumed_execution is not None
    return resumed_execution


async def test_unsaved_reads_are_repeated_after_storage_failure(
    journal: Journal, tmp_path: Path
) -> None:
    """One of two creates happened; meanwhile it may have been attributed to the other."""
    first, second = await send_create(journal), await send_create(journal)
    async with move_database(tmp_path / "gateway.db"):
        with pytest.raises(StoreUnavailable):
            await first.record_reconciled_outcome(CALL, CONFIRMED_CREATE)
    first = await resume_execution(journal, first)
    assert first.write_in_doubt is not None
    second = await resume_execution(journal, second)
    await claim_outcome(second, first, journal)
    first = await resume_execution(journal, first)
    assert first.current_write is not None
    assert first.current_write.state == SENT
    with pytest.raises(Unknown):
        await first.record_reconciled_outcome(CALL, CONFIRMED_CREATE)
    await first.compare_and_set(CompareAndSet("recipient", "R-2", {"status": "inactive"}))
    await first.save()


async def claim_outcome(
    second: OperationExecution, first: OperationExecution, journal: Journal
) -> None:
    first.is_sending = False
    await second.record_reconciled_outcome(CALL, CONFIRMED_CREATE)
    assert [write.state for write in second.writes.values()] == [CONFIRMED]
    journal.release(second)


STATUS_RECORD = CompareAndSet("recipient", "R-1", {"status": "inactive"})


async def test_object_state_of_a_write_is_committed_with_next_step(
    journal: Journal, object_states: ObjectStateStore
) -> None:
    execution = await send_create(journal)
    execution.record_response(CALL, CONFIRMED_CREATE.body)
    await execution.compare_and_set(STATUS_RECORD)
    assert await object_states.load(API_KEY.tenant, "recipient", "R-1") == {}
    execution.new_aliases["R-1111111111111111"] = "R-1"
    await execution.finish()
    assert await object_states.load(API_KEY.tenant, "recipient", "R-1") == STATUS_RECORD.facts
    legacy_ids = await object_states.load_facts(
        API_KEY.tenant, LoadFacts("legacy id", ids=("R-1",))
    )
    assert legacy_ids == {"R-1": "R-1111111111111111"}


@dataclass
class MachineClocks:
    """Wall clock and monotonic clock of a machine, in seconds."""

    wall: float = 1_800_000_000.0
    monotonic: float = 1000.0


@pytest.mark.parametrize(
    ("wall", "monotonic"),
    [
        pytest.param(60, 60, id="it was held up"),
        pytest.param(60, 0, id="it slept: one of its clocks stood still"),
        pytest.param(-60, 0, id="its clock was set back"),
    ],
)
async def test_paused_instance_must_renew_its_fence(
    store: Store, object_states: ObjectStateStore, wall: float, monotonic: float
) -> None:
    machine_clocks = MachineClocks()
    clock = ServiceClock(lambda: machine_clocks.wall, lambda: machine_clocks.monotonic)
    journal = Journal(store, object_states, clock)
    execution = await send_create(journal)
    assert execution.is_fence_recent
    machine_clocks.wall, machine_clocks.monotonic = (
        machine_clocks.wall + wall,
        machine_clocks.monotonic + monotonic,
    )
    assert not execution.is_fence_recent
    await execution.verify_fence()
    assert execution.is_fence_recent
    await journal.operations.take_over(execution.operation_record, "another")
    machine_clocks.wall, machine_clocks.monotonic = (
        machine_clocks.wall + wall,
        machine_clocks.monotonic + monotonic,
    )
    with pytest.raises(OwnershipLostError):
        await execution.verify_fence()


async def test_guarding_record_is_committed_before_the_write(
    journal: Journal, object_states: ObjectStateStore
) -> None:
    execution = await send_create(journal)
    execution.record_response(CALL, CONFIRMED_CREATE.body)
    await execution.compare_and_set(
        CompareAndSet("recipient", "R-1", {"status": "inactive"}, expected={"status": None})
    )
    assert await object_states.load(API_KEY.tenant, "recipient", "R-1") == STATUS_RECORD.facts
    await execution.compare_and_set(CompareAndSet("recipient", "R-1", {"status": "disabled"}))
    with pytest.raises(Conflict):
        await execution.compare_and_set(
            CompareAndSet("recipient", "R-1", {"deleted": True}, expected={"status": None})
        )
    await execution.save()
    assert await object_states.load(API_KEY.tenant, "recipient", "R-1") == {"status": "disabled"}


async def test_object_state_is_recorded_on_replay(
    journal: Journal, object_states: ObjectStateStore, tmp_path: Path
) -> None:
    """The write was answered, but the answer and the object state could not be stored."""
    execution = await send_create(journal)
    execution.record_response(CALL, CONFIRMED_CREATE.body)
    await execution.compare_and_set(STATUS_RECORD)
    async with move_database(tmp_path / "gateway.db"):
        with pytest.raises(StoreUnavailable):
            await execution.finish()
    execution = await resume_execution(journal, execution)
    assert execution.replay_step(CALL) == CONFIRMED_CREATE.body
    assert execution.replay_step(STATUS_RECORD) is None
    await execution.finish()
    assert await object_states.load(API_KEY.tenant, "recipient", "R-1") == STATUS_RECORD.facts


def test_request_fingerprint_is_independent_of_id_import(journal: Journal) -> None:
    """The first attempt may predate the import, or an older version that ignored imported ids."""
    add_operation = next(
        operation for operation in OPERATIONS if operation.name == "create_payment"
    )

    def build_request(batch: str, payee: str, imported_ids: dict[str, str]) -> Request:
        body = {"recipient": {"id": payee}, "sourceAmount": "8.00"}
        request = Request(datetime.now(UTC), generate_hex_id(), {"id": batch}, body=body)
        return structs.replace(request, imported_ids=imported_ids)

    record_before = journal.build_record(
        API_KEY, add_operation, build_request("B-OURS", "R-OURS", {}), "a-request"
    )
    names = {"B-THEIRS": "B-OURS", "R-THEIRS": "R-OURS"}
    record_after = journal.build_record(
        API_KEY, add_operation, build_request("B-THEIRS", "R-THEIRS", names), "a-request"
    )
    current_id_record = journal.build_record(
        API_KEY, add_operation, build_request("B-THEIRS", "R-THEIRS", {}), "a-request"
    )
    other_batch_record = journal.build_record(
        API_KEY, add_operation, build_request("B-OTHER", "R-OURS", {}), "a-request"
    )
    assert record_after.fingerprint == current_id_record.fingerprint
    assert record_after.has_same_request(record_before)
    assert record_after.has_same_request(current_id_record)
    assert not record_after.has_same_request(other_batch_record)
    assert not record_before.has_same_request(record_after)
    assert {*record_after.object_ids} == {"B-OURS", "B-THEIRS"}


@pytest.mark.parametrize("guard", ["frozen", "restored"])
async def test_first_change_is_refused_also_if_the_operation_was_saved_before(
    journal: Journal, store: Store, object_states: ObjectStateStore, guard: str
) -> None:
    """With several processes it is saved before its first call, with what it has loaded until then."""
    operation = next(each for each in OPERATIONS if each.name == "create_payment")
    request = Request(now=datetime.now(UTC), ids={"id": "B-1"}, body={})
    record = journal.build_record(API_KEY, operation, request, "a-request")
    execution = journal.start_execution(record, operation, request)
    execution.record_step(LoadFacts("batch", "B-1"), {})
    await execution.save()
    if guard == "frozen":
        await freeze_writes(store, ALL_TENANTS)
    else:
        await set_restored_flag(store, NO_MARK)
    with pytest.raises(Halted):
        await execution.compare_and_set(CompareAndSet("batch", "B-1", {"phase": "sent"}))
    assert await object_states.load(API_KEY.tenant, "batch", "B-1") == {}
