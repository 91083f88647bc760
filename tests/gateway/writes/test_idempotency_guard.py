"""Detection of retries among identical requests, with the timing under control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.http.responses import LegacyResponse
from gateway.simulator import Service, start_simulator
from gateway.storage import ObjectStateStore, Store
from gateway.storage.operations import ANSWERED, DONE, OperationRecord, OperationRepository
from gateway.writes.caller import Caller
from gateway.writes.idempotency import IdempotencyGuard, WriteRequest
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from mappings import OPERATIONS
from mappings.effects import Answer, Request
from mappings.failures import Failure, Unknown
from tests.assembly import open_gateway_parts
from tests.running_gateway import ENVIRONMENT, KEY, build_settings

CREATE = next(one for one in OPERATIONS if one.name == "create_recipient")
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "King",
    "email": "ada@example.com",
}


class DelayedOperationRepository(OperationRepository):
    """Returns stale rows: it reads first, and returns only after deliveries are recorded."""

    def __init__(self, store: Store, ledger: ObjectStateStore, journal: Journal) -> None:
        super().__init__(store, ledger)
        self._journal = journal
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        """What is written down between the next reading and its answer."""

    async def list_related_open(self, operation: OperationRecord) -> list[OperationRecord]:
        rows = await super().list_related_open(operation)
        await self._journal.save_deliveries_and_resets()
        if begins := self.before_answer:
            self.before_answer = None
            await begins()
        return rows


CREDENTIALS = Credentials(KEY["access_key"], KEY["secret_key"])
CALLER_KEY = ApiKey("k", "key", "", KEY["merchant"], ENVIRONMENT, CREDENTIALS, None, ())


@dataclass
class IdempotencyHarness:
    once: IdempotencyGuard
    service: Service
    rows: DelayedOperationRepository
    journal: Journal

    async def send_request(
        self, *, is_delivered: bool = True
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        """Send a request; ``comes`` says whether the client receives the answer."""
        request = Request(datetime.now(UTC), "a seed", body=RECIPIENT_BODY)
        response, finished = await self.once.answer(
            WriteRequest(CREATE, request, Caller(CALLER_KEY, "id")), build_response, raise_failure
        )
        if finished:
            if is_delivered:
                self.once.record_delivery(finished)
            self.once.stop_delivery(finished)
        return response, finished


async def build_response(answer: Answer) -> LegacyResponse:
    return LegacyResponse(200, answer.body)


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
        said, _ = await harness.send_request()
        assert said.status == 200
    assert harness.service.creation_counts["recipient"] == 3


@pytest.mark.parametrize("is_there", [True, False])
async def test_operation_recorded_during_lookup_is_the_first_attempt(
    harness: IdempotencyHarness, *, is_there: bool
) -> None:
    """Its client has disconnected meanwhile, so the other request is its retry."""
    journal = harness.journal

    def course() -> OperationExecution:
        request = Request(datetime.now(UTC), "another seed", body=RECIPIENT_BODY)
        return journal.start_execution(
            journal.build_record(CALLER_KEY, CREATE, request, "first"), CREATE, request
        )

    first = course() if is_there else None

    async def begins() -> None:
        begun = first or course()
        await begun.save_start()
        await journal.record_disconnect(begun)

    harness.rows.before_answer = begins
    with pytest.raises(Unknown):
        await harness.send_request()
    assert harness.service.creation_counts["recipient"] == 0


async def test_finished_operation_keeps_only_its_answer_until_delivery(
    harness: IdempotencyHarness,
) -> None:
    first, one = await harness.send_request(is_delivered=False)
    assert one is not None
    stored = await harness.rows.find_operation(one.id)
    assert stored is not None
    assert (stored.state, stored.request, await harness.rows.load_step_results(one)) == (
        DONE,
        None,
        [],
    )
    again, same = await harness.send_request()
    assert (again.body_bytes, same and same.id) == (first.body_bytes, one.id)
    assert harness.service.creation_counts["recipient"] == 1
    await harness.send_request()
    assert harness.service.creation_counts["recipient"] == 2
    over = await harness.rows.find_operation(one.id)
    assert over is not None
    assert over.state == ANSWERED
