"""The reconciler's sweep over open operations, and its shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.storage import Ledger, Store, StoreUnavailable
from gateway.storage.undertakings import OperationRecord, OperationRepository
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.settling import Settling
from mappings import OPERATIONS
from mappings.effects import Call, Request
from tests.house import settings_for
from tests.parts import open_parts
from tests.processes import free_port
from tests.simulation.assembly import OWN_KEY
from tests.sockets import until

CREATE = next(one for one in OPERATIONS if one.name == "create_recipient")
CALL = Call(
    "POST", "/recipients", {"email": "ada@example.com"}, reconcile=lambda _sending: iter(())
)  # type: ignore[arg-type]


class Slow(OperationRepository):
    """Lists open operations only when the test allows it."""

    def __init__(self, store: Store, ledger: Ledger, _journal: Journal) -> None:
        super().__init__(store, ledger)
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def left_open(self) -> list[OperationRecord]:
        rows = await super().left_open()
        assert rows
        self.asked.set()
        await self.may.wait()
        return rows


def _course(journal: Journal) -> OperationExecution:
    asked = Request(datetime.now(UTC), "a seed", body={"type": "individual"})
    one = journal.undertaking(OWN_KEY, CREATE, asked, "a request")
    return journal.course(one, CREATE, asked)


async def test_a_sweep_that_is_under_way_at_the_end_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would continue on a state that is being closed."""
    settings = settings_for(tmp_path, f"http://127.0.0.1:{free_port()}")
    async with open_parts(settings, Slow) as parts:
        course = _course(parts.journal)
        await course.enter(CALL)
        await course.leave("nobody knows")
        parts.journal.leave(course)
        rows = parts.journal.rows
        assert isinstance(rows, Slow)
        monkeypatch.setattr(parts.settling, "settle", _for_ever)
        async with parts.settling:
            async with asyncio.timeout(30):
                await rows.asked.wait()
            asyncio.get_running_loop().call_soon(rows.may.set)
        assert not _tries()


async def test_what_cannot_be_written_down_during_a_sweep_is_not_forgotten_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has not read this operation, because it began later."""
    settings = settings_for(tmp_path, f"http://127.0.0.1:{free_port()}")
    async with open_parts(settings, Slow) as parts:
        course = _course(parts.journal)
        await course.enter(CALL)
        rows = parts.journal.rows
        assert isinstance(rows, Slow)
        monkeypatch.setattr(parts.settling, "settle", _for_ever)
        sweeping = asyncio.ensure_future(parts.settling.sweep())
        async with asyncio.timeout(30):
            await rows.asked.wait()
        parts.journal.unsaved["begun since"] = course
        rows.may.set()
        await sweeping
        assert "begun since" in parts.journal.unsaved
        await parts.settling.sweep()
        assert not parts.journal.unsaved, "it is no longer open"


class Failing(OperationRepository):
    """Fails once to record a delivered answer, and succeeds after that."""

    def __init__(self, store: Store, ledger: Ledger, _journal: Journal) -> None:
        super().__init__(store, ledger)
        self.fails: Exception | None = None

    async def answered(self, ids: Sequence[str]) -> None:
        if ids and (error := self.fails) is not None:
            self.fails = None
            raise error
        await super().answered(ids)


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("it is gone", means="nothing", do="wait"), RuntimeError("a driver's own")],
    ids=["unavailable", "odd"],
)
async def test_an_answer_that_could_not_be_noted_is_noted_although_no_other_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Until then another process takes the next identical request for a retry."""
    monkeypatch.setattr("gateway.writes.settling.SWEEP_SECONDS", 0.01)
    settings = settings_for(tmp_path, f"http://127.0.0.1:{free_port()}")
    async with open_parts(settings, Failing) as parts:
        course = _course(parts.journal)
        await course.begin()
        await course.finish(None)
        parts.journal.leave(course)
        rows = parts.journal.rows
        assert isinstance(rows, Failing)
        async with parts.settling:
            rows.fails = error
            parts.journal.deliver(course.one)
            await until(lambda: not parts.journal.delivered)
        assert rows.fails is None


async def _for_ever(_one: OperationRecord) -> bool:
    await asyncio.Event().wait()
    return False


def _tries() -> list[asyncio.Task[object]]:
    name = Settling._try.__qualname__
    return [
        task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == name
    ]
