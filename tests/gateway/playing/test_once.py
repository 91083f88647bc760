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
from gateway.simulator import Service, start
from gateway.storage import Ledger, Store
from gateway.storage.undertakings import ANSWERED, DONE, OperationRecord, OperationRepository
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.once import IdempotencyGuard, Wanted
from gateway.writes.player import Caller
from mappings import OPERATIONS
from mappings.effects import Answer, Request
from mappings.failures import Failure, Unknown
from tests.house import ENVIRONMENT, KEY, settings_for
from tests.parts import open_parts

CREATE = next(one for one in OPERATIONS if one.name == "create_recipient")
ADA = {"type": "individual", "firstName": "Ada", "lastName": "King", "email": "ada@example.com"}


class Late(OperationRepository):
    """Returns stale rows: it reads first, and returns only after deliveries are recorded."""

    def __init__(self, store: Store, ledger: Ledger, journal: Journal) -> None:
        super().__init__(store, ledger)
        self._journal = journal
        self.begins: Callable[[], Awaitable[None]] | None = None
        """What is written down between the next reading and its answer."""

    async def open_ones(self, one: OperationRecord) -> list[OperationRecord]:
        rows = await super().open_ones(one)
        await self._journal.note_delivered()
        if begins := self.begins:
            self.begins = None
            await begins()
        return rows


PAIR = Credentials(KEY["access_key"], KEY["secret_key"])
ITS = ApiKey("k", "key", "", KEY["merchant"], ENVIRONMENT, PAIR, None, ())


@dataclass
class Counter:
    once: IdempotencyGuard
    service: Service
    rows: Late
    journal: Journal

    async def ask(self, *, comes: bool = True) -> tuple[LegacyResponse, OperationRecord | None]:
        """Send a request; ``comes`` says whether the client receives the answer."""
        asked = Request(datetime.now(UTC), "a seed", body=ADA)
        said, over = await self.once.answer(Wanted(CREATE, asked, Caller(ITS, "id")), _say, _refuse)
        if over:
            if comes:
                self.once.delivered(over)
            self.once.undelivered(over)
        return said, over


async def _say(answer: Answer) -> LegacyResponse:
    return LegacyResponse(200, answer.body)


async def _refuse(failure: Failure) -> LegacyResponse:
    raise failure


@pytest.fixture
async def counter(tmp_path: Path) -> AsyncIterator[Counter]:
    service = Service(seed=1)
    simulator = await start(service=service)
    async with open_parts(settings_for(tmp_path, simulator.url), Late) as parts:
        assert isinstance(parts.journal.rows, Late)
        yield Counter(parts.once, service, parts.journal.rows, parts.journal)
    await simulator.stop()


async def test_one_that_is_noted_as_delivered_while_it_is_read_is_no_first_try(
    counter: Counter,
) -> None:
    for _ in range(3):
        said, _ = await counter.ask()
        assert said.status == 200
    assert counter.service.created["recipient"] == 3


@pytest.mark.parametrize("is_there", [True, False])
async def test_one_that_is_written_down_while_it_is_read_is_a_first_try(
    counter: Counter, *, is_there: bool
) -> None:
    """Its client has disconnected meanwhile, so the other request is its retry."""
    journal = counter.journal

    def course() -> OperationExecution:
        asked = Request(datetime.now(UTC), "another seed", body=ADA)
        return journal.course(journal.undertaking(ITS, CREATE, asked, "first"), CREATE, asked)

    first = course() if is_there else None

    async def begins() -> None:
        begun = first or course()
        await begun.begin()
        await journal.desert(begun)

    counter.rows.begins = begins
    with pytest.raises(Unknown):
        await counter.ask()
    assert counter.service.created["recipient"] == 0


async def test_of_what_is_done_the_answer_is_kept_until_it_has_come_and_nothing_else(
    counter: Counter,
) -> None:
    first, one = await counter.ask(comes=False)
    assert one is not None
    done = await counter.rows.read(one.id)
    assert done is not None
    assert (done.state, done.asked, await counter.rows.given(one)) == (DONE, None, [])
    again, same = await counter.ask()
    assert (again.encoded_body, same and same.id) == (first.encoded_body, one.id)
    assert counter.service.created["recipient"] == 1
    await counter.ask()
    assert counter.service.created["recipient"] == 2
    over = await counter.rows.read(one.id)
    assert over is not None
    assert over.state == ANSWERED
