"""What a course knows when the state could not be told of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.http.request_ids import generate_id
from gateway.storage import Ledger, Store, StoreUnavailable, open_store
from gateway.storage.undertakings import HAPPENED, SENT, Overtaken
from gateway.upstream.clock import ServiceClock
from gateway.writes.journal import Journal, OperationExecution
from mappings import OPERATIONS
from mappings.effects import Call, CompareAndSet, Confirmed, Request
from mappings.failures import Conflict, Unknown
from tests.house import settings_for
from tests.simulation.gateway import OWN_KEY
from tests.states import lay_out
from tests.test_state_faults import moved

CREATE = next(one for one in OPERATIONS if one.name == "create_recipient")
CALL = Call(
    "POST", "/recipients", {"email": "ada@example.com"}, reconcile=lambda _sending: iter(())
)  # type: ignore[arg-type]
ADA = Confirmed({"recipient": {"id": "R-1"}}, object_id="R-1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    settings = settings_for(tmp_path, "http://127.0.0.1:1")
    async with open_store(lay_out(settings.state)) as store:
        yield store


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


@pytest.fixture
def journal(store: Store, ledger: Ledger) -> Journal:
    return Journal(store, ledger, ServiceClock())


async def sent(journal: Journal) -> OperationExecution:
    """One whose create has left, and was not answered."""
    asked = Request(now=datetime.now(UTC), seed=str(random.random()), body={"type": "individual"})
    one = journal.undertaking(OWN_KEY, CREATE, asked, "a-request")
    course = journal.course(one, CREATE, asked)
    await course.enter(CALL)
    return course


async def again(journal: Journal, course: OperationExecution) -> OperationExecution:
    """It is taken up again, in the same process."""
    journal.leave(course)
    row = await journal.rows.read(course.one.id)
    assert row is not None
    taken = await journal.take(row, CREATE)
    assert taken is not None
    return taken


async def test_what_was_only_read_is_read_again_where_the_state_could_not_be_told(
    journal: Journal, tmp_path: Path
) -> None:
    """Two creates of which one happened: meanwhile it may have been found to be the other's."""
    first, second = await sent(journal), await sent(journal)
    async with moved(tmp_path / "gateway.db"):
        with pytest.raises(StoreUnavailable):
            await first.found(CALL, ADA)
    first = await again(journal, first)
    assert first.unanswered is not None
    second = await again(journal, second)
    await _claims(second, first, journal)
    first = await again(journal, first)
    assert first.entered is not None
    assert first.entered.state == SENT
    with pytest.raises(Unknown):
        await first.found(CALL, ADA)
    await first.record(CompareAndSet("recipient", "R-2", {"status": "inactive"}))
    await first.catch_up()


async def _claims(second: OperationExecution, first: OperationExecution, journal: Journal) -> None:
    first.is_sending = False
    await second.found(CALL, ADA)
    assert [write.state for write in second.writes.values()] == [HAPPENED]
    journal.leave(second)


WORD = CompareAndSet("recipient", "R-1", {"status": "inactive"})


async def test_what_is_to_be_remembered_of_a_write_is_committed_with_what_follows(
    journal: Journal, ledger: Ledger
) -> None:
    course = await sent(journal)
    course.told(CALL, ADA.body)
    await course.record(WORD)
    assert await ledger.recall(OWN_KEY.tenant, "recipient", "R-1") == {}
    course.names["R-1111111111111111"] = "R-1"
    await course.finish()
    assert await ledger.recall(OWN_KEY.tenant, "recipient", "R-1") == WORD.facts
    assert await ledger.legacy_ids(OWN_KEY.tenant, ["R-1"]) == {"R-1": "R-1111111111111111"}


@dataclass
class Hands:
    """A machine's clocks, in seconds."""

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
async def test_whoever_was_held_up_makes_sure_of_its_turn(
    store: Store, ledger: Ledger, wall: float, monotonic: float
) -> None:
    hands = Hands()
    clock = ServiceClock(lambda: hands.wall, lambda: hands.monotonic)
    journal = Journal(store, ledger, clock)
    course = await sent(journal)
    assert course.is_fenced
    hands.wall, hands.monotonic = hands.wall + wall, hands.monotonic + monotonic
    assert not course.is_fenced
    await course.fence()
    assert course.is_fenced
    await journal.rows.take(course.one, "another")
    hands.wall, hands.monotonic = hands.wall + wall, hands.monotonic + monotonic
    with pytest.raises(Overtaken):
        await course.fence()


async def test_what_guards_a_write_is_committed_before_it(journal: Journal, ledger: Ledger) -> None:
    course = await sent(journal)
    course.told(CALL, ADA.body)
    await course.record(
        CompareAndSet("recipient", "R-1", {"status": "inactive"}, expected={"status": None})
    )
    assert await ledger.recall(OWN_KEY.tenant, "recipient", "R-1") == WORD.facts
    await course.record(CompareAndSet("recipient", "R-1", {"status": "disabled"}))
    with pytest.raises(Conflict):
        await course.record(
            CompareAndSet("recipient", "R-1", {"deleted": True}, expected={"status": None})
        )
    await course.catch_up()
    assert await ledger.recall(OWN_KEY.tenant, "recipient", "R-1") == {"status": "disabled"}


async def test_what_was_to_be_remembered_is_when_it_is_played_again(
    journal: Journal, ledger: Ledger, tmp_path: Path
) -> None:
    """Its write was answered, and that and its facts could not be written down."""
    course = await sent(journal)
    course.told(CALL, ADA.body)
    await course.record(WORD)
    async with moved(tmp_path / "gateway.db"):
        with pytest.raises(StoreUnavailable):
            await course.finish()
    course = await again(journal, course)
    assert course.replayed(CALL) == ADA.body
    assert course.replayed(WORD) is None
    await course.finish()
    assert await ledger.recall(OWN_KEY.tenant, "recipient", "R-1") == WORD.facts


def test_a_request_is_known_again_whenever_its_ids_were_imported(journal: Journal) -> None:
    """Its first try may be from before: of this program, or of one that looked for no such thing."""
    add = next(one for one in OPERATIONS if one.name == "create_payment")

    def asked(batch: str, payee: str, imported: dict[str, str]) -> Request:
        body = {"recipient": {"id": payee}, "sourceAmount": "8.00"}
        its = Request(datetime.now(UTC), generate_id(), {"id": batch}, body=body)
        return replace(its, imported_ids=imported)

    before = journal.undertaking(OWN_KEY, add, asked("B-OURS", "R-OURS", {}), "a-request")
    names = {"B-THEIRS": "B-OURS", "R-THEIRS": "R-OURS"}
    after = journal.undertaking(OWN_KEY, add, asked("B-THEIRS", "R-THEIRS", names), "a-request")
    plain = journal.undertaking(OWN_KEY, add, asked("B-THEIRS", "R-THEIRS", {}), "a-request")
    other = journal.undertaking(OWN_KEY, add, asked("B-OTHER", "R-OURS", {}), "a-request")
    assert after.fingerprint == plain.fingerprint
    assert after.asks_for_the_same(before)
    assert after.asks_for_the_same(plain)
    assert not after.asks_for_the_same(other)
    assert not before.asks_for_the_same(after)
    assert {*after.subjects} == {"B-OURS", "B-THEIRS"}
