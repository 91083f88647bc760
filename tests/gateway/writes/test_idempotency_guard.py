"""Detection of retries among identical requests, with the timing under control."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.http.responses import LegacyResponse
from gateway.payloads import json_codec
from gateway.storage import ObjectStateStore, Store, StoreUnavailable
from gateway.storage.operation_records import Checkpoint, OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.writes.batch_routing import BatchRoutedElsewhereError
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.states import ANSWERED, DONE, UNDONE
from gateway.writes.write_request import Caller, WriteRequest
from mappings import OPERATIONS
from mappings.effects import Answer, CompareAndSet, Flow, Operation, Request
from mappings.failures import Failure, Unknown
from mappings.signed_writes import CHANGE
from tests.assembly import open_gateway_parts
from tests.running_gateway import ENVIRONMENT, KEY, build_settings
from tests.simulator import Fault, Service, start_simulator

CREATE, UPDATE, DELETE = (
    next(operation for operation in OPERATIONS if operation.name == name)
    for name in ("create_recipient", "update_recipient", "delete_recipient")
)
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "King",
    "email": "ada@example.com",
}


class DelayedOperationRepository(OperationRepository):
    """Returns stale rows: it reads first, and returns only after deliveries are recorded."""

    def __init__(self, store: Store, object_states: ObjectStateStore, journal: Journal) -> None:
        super().__init__(store, object_states)
        self._journal = journal
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        """Runs between the next read and its return."""

    async def list_related_open(self, operation: OperationRecord) -> list[OperationRecord]:
        rows = await super().list_related_open(operation)
        await self._journal.deliveries.save_deliveries_and_resets()
        if run_before_answer := self.before_answer:
            self.before_answer = None
            await run_before_answer()
        return rows


CREDENTIALS = Credentials(KEY["access_key"], KEY["secret_key"])
CALLER_KEY = ApiKey("k", "key", "", KEY["merchant"], ENVIRONMENT, CREDENTIALS, None, ())


@dataclass
class IdempotencyHarness:
    guard: IdempotencyGuard
    service: Service
    operation_repository: DelayedOperationRepository
    journal: Journal

    async def send_request(
        self, *, is_delivered: bool = True
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        """Creates a recipient; ``is_delivered`` says whether the client receives the answer."""
        request = Request(datetime.now(UTC), "a seed", body=RECIPIENT_BODY)
        response, finished_operation = await self.answer(CREATE, request)
        if finished_operation:
            if is_delivered:
                self.guard.deliveries.record_delivery(finished_operation)
            self.guard.deliveries.end(finished_operation)
        return response, finished_operation

    async def answer(
        self, operation: Operation, request: Request
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        return await self.guard.answer(
            WriteRequest(operation, request, Caller(CALLER_KEY, "id")),
            build_response,
            raise_failure,
        )


async def build_response(answer: Answer) -> LegacyResponse:
    return LegacyResponse(200, [json_codec.dumps(answer.body)])


def extract_recipient_id(response: LegacyResponse) -> str:
    return str(json_codec.loads(response.body_bytes)["recipient"]["id"])


async def raise_failure(failure: Failure) -> LegacyResponse:
    raise failure


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IdempotencyHarness]:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    async with open_gateway_parts(
        build_settings(tmp_path, simulator.url), DelayedOperationRepository
    ) as parts:
        assert isinstance(parts.journal.operations, DelayedOperationRepository)
        yield IdempotencyHarness(parts.guard, service, parts.journal.operations, parts.journal)
    await simulator.stop()


async def test_operation_delivered_during_lookup_does_not_answer_the_next(
    harness: IdempotencyHarness,
) -> None:
    for _ in range(3):
        response, _ = await harness.send_request()
        assert response.status == 200
    assert harness.service.creation_counts["recipient"] == 3


@pytest.mark.parametrize("is_started_before", [True, False])
async def test_operation_recorded_during_lookup_is_the_first_attempt(
    harness: IdempotencyHarness, *, is_started_before: bool
) -> None:
    """Its client has disconnected meanwhile, so the other request is its retry."""
    journal = harness.journal

    def build_execution() -> OperationExecution:
        request = Request(datetime.now(UTC), "another seed", body=RECIPIENT_BODY)
        return journal.start_execution(
            journal.build_record(CALLER_KEY, CREATE, request, "first"), CREATE, request
        )

    first = build_execution() if is_started_before else None

    async def begin_operation() -> None:
        execution = first or build_execution()
        await execution.save()
        await journal.deliveries.record_disconnect(execution)

    harness.operation_repository.before_answer = begin_operation
    with pytest.raises(Unknown):
        await harness.send_request()
    assert harness.service.creation_counts["recipient"] == 0


async def test_operation_that_is_in_doubt_since_the_lookup_is_the_first_attempt(
    harness: IdempotencyHarness,
) -> None:
    harness.service.faults.append(Fault("POST", "/v1/recipients", status=408))

    async def leave_write_in_doubt() -> None:
        with pytest.raises(Unknown):
            await harness.send_request()

    harness.operation_repository.before_answer = leave_write_in_doubt
    with pytest.raises(Unknown):
        await harness.send_request()
    assert harness.service.creation_counts["recipient"] == 0


async def test_copies_of_a_request_whose_first_object_was_deleted_are_executed_once(
    harness: IdempotencyHarness,
) -> None:
    first, _ = await harness.send_request(is_delivered=False)
    await harness.answer(
        DELETE, Request(datetime.now(UTC), "a seed", ids={"id": extract_recipient_id(first)})
    )
    copies = await asyncio.gather(*(harness.send_request() for _ in range(3)))
    assert len({extract_recipient_id(response) for response, _ in copies}) == 1
    assert harness.service.creation_counts["recipient"] == 2


async def test_request_in_place_of_its_undone_attempt_registers_its_change_anew(
    harness: IdempotencyHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that loaded the batch between the two must see that another change has begun."""
    repository, seeds = harness.operation_repository, list[str]()
    save_checkpoint = repository.save_checkpoint

    async def lose_first_attempt(record: OperationRecord, checkpoint: Checkpoint) -> None:
        if not checkpoint.is_first and len(seeds) == 1:
            taken = await repository.take_over(record, "another process")
            assert taken
            await save_checkpoint(taken, Checkpoint(column_values={"state": UNDONE}))
        await save_checkpoint(record, checkpoint)

    def record_seed(request: Request) -> Flow:
        seeds.append(request.seed)
        yield CompareAndSet("signed", "B-1", {request.seed: {}, "last": request.seed})
        yield CompareAndSet("signed", "B-1", {request.seed: None}, expected={"last": request.seed})
        return Answer({})

    monkeypatch.setattr(repository, "save_checkpoint", lose_first_attempt)
    operation = dataclasses.replace(CHANGE, flow=record_seed)
    response, _ = await harness.answer(operation, Request(datetime.now(UTC), "a seed"))
    assert response.status == 200
    assert len({*seeds}) == len(seeds) == 2


async def test_retry_of_an_attempt_that_did_nothing_is_checked_like_a_new_request(
    harness: IdempotencyHarness,
) -> None:
    """The key may have been switched to the other service since, or writes may be frozen."""
    created, _ = await harness.send_request()
    ids = {"id": extract_recipient_id(created)}
    request = Request(datetime.now(UTC), "a seed", ids=ids, body={"firstName": "Eve"})
    record = harness.journal.build_record(CALLER_KEY, UPDATE, request, "first")
    first_attempt = harness.journal.start_execution(record, UPDATE, request)
    await first_attempt.save()
    harness.journal.release(first_attempt)  # as if its process had ended

    async def refuse(_operation_id: str) -> list[CompareAndSet]:
        raise BatchRoutedElsewhereError

    caller = Caller(CALLER_KEY, "second")
    with pytest.raises(BatchRoutedElsewhereError):
        await harness.guard.answer(
            WriteRequest(UPDATE, request, caller, routing_checks=refuse),
            build_response,
            raise_failure,
        )
    assert not harness.service.list_requests("PATCH", "*")


async def test_operation_that_ends_during_lookup_does_not_block_the_next(
    harness: IdempotencyHarness,
) -> None:
    """Its response is on its way to its client: nothing about it is in doubt."""
    created, _ = await harness.send_request()
    ids = {"id": extract_recipient_id(created)}
    journal = harness.journal

    def build_update(first_name: str) -> Request:
        return Request(datetime.now(UTC), "a seed", ids=ids, body={"firstName": first_name})

    request = build_update("Eve")
    first = journal.start_execution(
        journal.build_record(CALLER_KEY, UPDATE, request, "first"), UPDATE, request
    )
    await first.save()

    async def end_operation() -> None:
        journal.deliveries.pending[first.operation_record.id] = first
        await first.finish("{}")
        journal.release(first)

    harness.operation_repository.before_answer = end_operation
    response, _ = await harness.answer(UPDATE, build_update("Ann"))
    assert response.status == 200


async def test_finished_operation_keeps_only_its_answer_until_delivery(
    harness: IdempotencyHarness,
) -> None:
    first, operation = await harness.send_request(is_delivered=False)
    assert operation is not None
    stored_operation = await harness.operation_repository.find_operation(operation.id)
    assert stored_operation is not None
    assert (
        stored_operation.state,
        stored_operation.request,
        await harness.operation_repository.load_step_results(operation),
    ) == (
        DONE,
        None,
        [],
    )
    repeated_response, same_operation = await harness.send_request()
    assert (repeated_response.body_bytes, same_operation and same_operation.id) == (
        first.body_bytes,
        operation.id,
    )
    assert harness.service.creation_counts["recipient"] == 1
    await harness.send_request()
    assert harness.service.creation_counts["recipient"] == 2
    delivered_operation = await harness.operation_repository.find_operation(operation.id)
    assert delivered_operation is not None
    assert delivered_operation.state == ANSWERED


async def test_report_has_acknowledgements_that_only_the_kernel_knows(
    harness: IdempotencyHarness,
) -> None:
    """Another process waits for this report, and then takes an undelivered response for a retry."""
    _, operation = await harness.send_request(is_delivered=False)
    assert operation is not None
    deliveries = harness.guard.deliveries
    deliveries.watch(operation, lambda: False)
    await deliveries.save_reports_so_far()
    assert await _find_state(harness, operation) == DONE
    deliveries.watch(operation, lambda: True)
    await deliveries.save_reports_so_far()
    assert await _find_state(harness, operation) == ANSWERED


async def _find_state(harness: IdempotencyHarness, operation: OperationRecord) -> str | None:
    stored_operation = await harness.operation_repository.find_operation(operation.id)
    return stored_operation and stored_operation.state


class FailingEndRepository(OperationRepository):
    """Fails once to save that an operation is done."""

    def __init__(self, store: Store, object_states: ObjectStateStore, _journal: Journal) -> None:
        super().__init__(store, object_states)
        self._has_failed = False

    async def save_checkpoint(self, record: OperationRecord, checkpoint: Checkpoint) -> None:
        if checkpoint.column_values.get("state") == DONE and not self._has_failed:
            self._has_failed = True
            raise StoreUnavailable("it is gone", means="nothing", do="wait")
        await super().save_checkpoint(record, checkpoint)


async def test_key_replays_a_delivered_response_that_could_not_be_saved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load_credentials(*_: object) -> Credentials:
        return CREDENTIALS

    monkeypatch.setattr("gateway.writes.reconciler.load_credentials", load_credentials)
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    request = Request(datetime.now(UTC), "a seed", body=RECIPIENT_BODY)
    settings = build_settings(tmp_path, simulator.url)
    async with open_gateway_parts(settings, FailingEndRepository) as parts:

        async def send_request() -> LegacyResponse:
            write_request = WriteRequest(CREATE, request, Caller(CALLER_KEY, "id"), "a key")
            response, _ = await parts.guard.answer(write_request, build_response, raise_failure)
            return response

        with pytest.raises(Unknown):
            await send_request()
        (execution,) = parts.journal.unsaved_executions.values()
        # An identical request that waited has received the response.
        parts.journal.deliveries.record_delivery(execution.operation_record)
        assert await parts.reconciler.reconcile(execution.operation_record)
        assert (await send_request()).status == 200
        assert service.creation_counts["recipient"] == 1
    await simulator.stop()


async def test_request_that_changes_nothing_leaves_nothing_behind(
    harness: IdempotencyHarness,
) -> None:
    """As the summary of a batch that is no draft: most are read only."""
    create, read = (
        next(each for each in OPERATIONS if each.name == name)
        for name in ("create_batch", "read_batch_summary")
    )
    request = Request(datetime.now(UTC), "a seed", body={"sourceCurrency": "USD"})
    created, created_record = await harness.answer(create, request)
    assert created_record is not None
    harness.guard.deliveries.end(created_record)
    ids = {"id": str(json_codec.loads(created.body_bytes)["batch"]["id"])}
    response, record = await harness.answer(read, Request(datetime.now(UTC), "another", ids))
    assert (response.status, record) == (200, None)
    assert not harness.guard.deliveries.pending
