"""What operators' brakes rest on in the database: freezes, acts, numbers, and what is kept."""

from __future__ import annotations

import ast
import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Table, Text, bindparam, select, text, update

import gateway
from gateway.config.settings import Retention, State
from gateway.operator.operation_closing import close_in_doubt_operation
from gateway.operator.retention import delete_expired
from gateway.storage import Ledger, Store, Tenant, journal_asks, open_store
from gateway.storage.audit_log import acts_of
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.freezes import freeze, frozen, unfreeze
from gateway.storage.restore_marks import (
    Mark,
    flag_restored,
    read_mark,
    settle_restored,
    standing,
    write_mark,
)
from gateway.storage.tables import acts, journal, writes
from gateway.storage.undertakings import (
    ANSWERED,
    DID_NOT,
    DONE,
    HAPPENED,
    RUNNING,
    UNDONE,
    UNSETTLED,
    BeingChecked,
    Frozen,
    OperationRecord,
    OperationRepository,
    Point,
    Write,
)
from tests.gateway.store.conftest import at_revision
from tests.states import execute, fetch, recorded_statements

ACME = Tenant("acme", "live")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def begun(id_: str, owner: Tenant = ACME, at: datetime = NOW) -> OperationRecord:
    return OperationRecord(
        id=id_,
        owner=owner,
        key_id="k",
        key_name="key",
        operation="start_batch",
        request_id="r",
        fingerprint=f"f {id_}",
        began_at=at,
        instance="i",
    )


def sent(path: str = "/recipients") -> Write:
    return Write(0, "POST", path, "alike", NOW)


async def begin(store: Store, *ids: str) -> OperationRepository:
    rows = OperationRepository(store, Ledger(store))
    for id_ in ids:
        await rows.keep(begun(id_), Point(begins=True, enters=sent()))
    return rows


# What is given up


async def test_what_is_just_looked_at_is_given_up_right_after_it(state: State) -> None:
    """A running gateway looks at what is unsettled for a moment, and an operator need not hit it."""
    id_ = "0123456789ab"
    async with open_store(state) as store:
        rows = await begin(store, id_)

        async def change(table: Table, **values: str) -> None:
            await execute(store, update(table).values(**values))

        await change(writes, told=DID_NOT)
        await change(journal, state=RUNNING, why="it was not answered")
        closing = asyncio.create_task(close_in_doubt_operation(store, f"{id_}.0"))
        await asyncio.sleep(0.5)
        await change(journal, state=UNSETTLED)
        await closing
        assert (found := await rows.read(id_)) is not None
        assert found.state == UNDONE


# Numbers, and how an older state is known.


async def test_each_undertaking_has_a_greater_number(state: State) -> None:
    async with open_store(state) as store:
        assert (await standing(store)).mark == Mark(0, 0)
        await begin(store, "a", "b")
        assert (await standing(store)).mark == Mark(0, 2)
        await asyncio.gather(*(begin(store, f"c{n}") for n in range(5)))
        numbers = [row.number for row in await fetch(store, select(journal.c.number))]
        assert sorted(numbers) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_state_that_was_put_back_counts_as_the_latest_once_it_was_reconciled(
    state: State,
) -> None:
    async with open_store(state) as store:
        await begin(store, "a")
        mine, another_machine = Mark(3, 90), Mark(3, 95)
        assert await flag_restored(store, mine) is True
        assert await flag_restored(store, mine) is False
        assert (await standing(store)).restored
        after = await settle_restored(store, mine)
        found = await standing(store)
        assert (found.mark, found.restored) == (after, False)
        assert found.mark > another_machine > mine
        told = [act.what for act in await acts_of(store)]
        assert told == ["noticed an older state", "reconciled a restored state"]


async def test_reconciling_where_there_is_no_mark_counts_on_from_where_it_was_noticed(
    state: State,
) -> None:
    async with open_store(state) as store:
        await flag_restored(store, Mark(3, 90))
        assert await settle_restored(store, Mark(0, 0)) > Mark(3, 90)


async def test_a_start_is_refused_on_a_restored_state_and_nothing_else_is(state: State) -> None:
    async with open_store(state) as store:
        rows = OperationRepository(store, Ledger(store))
        await flag_restored(store, Mark(0, 1))
        with pytest.raises(BeingChecked):
            await rows.keep(begun("a"), Point(begins=True, minds_restores=True))
        await rows.keep(begun("b"), Point(begins=True, minds_freezes=True))
        assert await rows.read("a") is None


def test_a_mark_is_never_replaced_by_a_lesser_one(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    assert read_mark(path) == Mark(0, 0)
    for mark in (Mark(0, 5), Mark(0, 3), Mark(1, 1), Mark(0, 9)):
        write_mark(path, mark)
    assert read_mark(path) == Mark(1, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["mark"]


# Freezes.


async def test_what_is_frozen_begins_nothing(state: State) -> None:
    async with open_store(state) as store:
        rows = OperationRepository(store, Ledger(store))
        assert await freeze(store, Tenant("acme", "")) is True
        assert await freeze(store, Tenant("acme", "")) is False
        with pytest.raises(Frozen):
            await rows.keep(begun("a"), Point(begins=True, minds_freezes=True))
        other = begun("b", Tenant("other", "live"))
        await rows.keep(other, Point(begins=True, minds_freezes=True))
        assert [one.scope for one in await frozen(store)] == [Tenant("acme", "")]
        assert await unfreeze(store, Tenant("", "")) is False
        assert await unfreeze(store, Tenant("acme", "")) is True
        await rows.keep(begun("a"), Point(begins=True, minds_freezes=True))
        assert [act.what for act in await acts_of(store)] == ["froze", "unfroze"]


async def test_a_freeze_is_done_when_whoever_did_not_see_it_has_begun(postgres: State) -> None:
    """On PostgreSQL others write at the same time: what has looked already has begun."""
    async with open_store(postgres) as store:
        other: Any = await asyncpg.connect(postgres.url)
        async with other.transaction():
            await other.execute("SELECT count(*) FROM freezes")
            freezing = asyncio.create_task(freeze(store, ACME))
            await _is_waited_for(store)
            assert not freezing.done()
        await other.close()
        assert await freezing is True


async def _is_waited_for(store: Store) -> None:
    async with asyncio.timeout(30):
        while True:
            if await fetch(store, text("SELECT 1 FROM pg_locks WHERE NOT granted")):
                return
            await asyncio.sleep(0.02)


# What is kept for good.


async def test_the_audit_trail_outlives_what_is_forgotten(state: State) -> None:
    async with open_store(state, clock=lambda: NOW + timedelta(days=9)) as store:
        rows = await begin(store, "a", "b", "c")
        a, b, c = [await rows.read(id_) for id_ in "abc"]
        assert None not in (a, b, c)
        await rows.keep(a, Point(changes={"state": DONE}))
        await rows.answered(["a"])
        await rows.keep(b, Point(changes={"state": UNDONE}, drops=True))
        await rows.keep(c, Point(changes={"state": ANSWERED}, drops=True))
        await freeze(store, ACME)
        await unfreeze(store, ACME)
        await rows.expire(NOW + timedelta(days=8), NOW)
        counts = [len(await fetch(store, select(table))) for table in (journal, writes, acts)]
        assert counts == [3, 3, 2]


async def test_what_is_sealed_goes_when_the_answer_has_come(state: State) -> None:
    """Also of one that was finished without its client, and so is kept whole until then."""
    async with open_store(state) as store:
        rows = OperationRepository(store, Ledger(store))
        steps = Point(begins=True, steps=(0, "[]"), enters=sent())
        for id_ in ("whole", "told", "left"):
            await rows.keep(replace(begun(id_), asked="{}"), steps)
        await rows.keep(begun("whole"), Point(changes={"state": DONE, "answer": None}))
        await rows.keep(begun("told"), Point(changes={"state": DONE, "answer": "x"}, drops=True))
        await rows.answered(["whole", "told", "left"])
        for kept in ("x", None):  # until its connection is not reset any more
            found = [one for id_ in ("whole", "told", "left") if (one := await rows.read(id_))]
            assert [(one.state, one.asked, one.answer) for one in found] == [
                (ANSWERED, None, None),
                (ANSWERED, None, kept),
                (RUNNING, "{}", None),
            ]
            assert [await rows.given(one) for one in found] == [[], [], ["[]"]]
            await rows.expire(NOW, store.clock() + timedelta(seconds=1))


def test_only_retention_deletes_from_the_audit_trail() -> None:
    """The only names that ``delete`` is called with, but for what is forgotten after its time."""
    deleted: set[str] = set()
    for path in Path(gateway.__file__).parent.rglob("*.py"):
        if path.name == "retention.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = getattr(node, "func", None)
            if isinstance(called, ast.Name) and called.id == "delete":
                deleted |= {ast.unparse(one) for one in node.args}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "DELETE FROM" not in node.value.upper(), path
    assert deleted == {
        *("journal_steps", "pieces", "remembered", "instances", "freezes", "counters", "modes"),
        *("comparisons", "found_differences", "traffic"),
    }


async def test_what_is_open_is_found_without_reading_the_whole_journal(
    sqlite: State,
) -> None:
    async with open_store(sqlite) as store:
        with recorded_statements() as asked:
            await _use_journal(store)
        assert len(asked) > 10
        for statement, values in asked:
            its = f"EXPLAIN QUERY PLAN {statement}"
            whole = [
                one
                for one in await _explain(sqlite, its, values)
                if one.startswith("SCAN")
                and "ix_journal_open" not in one
                and "json_each" not in one
            ]
            assert not whole, statement


async def _explain(state: State, statement: str, values: Sequence[Any]) -> list[str]:
    file = sqlite_file(parsed(state.url))
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        return [str(row[3]) for row in connection.execute(statement, values)]


async def _use_journal(store: Store) -> None:
    await begin(store, "a")
    rows = OperationRepository(store, Ledger(store), lambda *_: False)
    await rows.open_ones(replace(begun("b"), idempotency="i", subjects=("R-1",)))
    await rows.left_open()
    await rows.keep(begun("c"), Point(begins=True, enters=sent("/recipients/R-1")))
    found = replace(sent(), state=HAPPENED, made="R-2", settled_at=NOW)
    await rows.keep(begun("c"), Point(settled=[found], made=["R-2"], changes={"state": DONE}))
    await rows.answered(["c"])
    assert await rows.rivals(begun("b"), sent()) == [await rows.read("a")]


async def test_of_what_is_over_no_more_is_read_than_is_asked_for(sqlite: State) -> None:
    """Also of statements with parameters: an index of some rows serves where these are spelled out."""
    async with open_store(sqlite) as store:
        await begin(store, "b")
        rows = OperationRepository(store, Ledger(store))
        with recorded_statements() as recorded:
            assert len(await rows.rivals(begun("a"), sent())) == 1
            await rows.read("b")
            await rows.expire(NOW, NOW)
            await delete_expired(store, Retention(texts_days=0, usage_days=0, audit_days=0))
        asked = [statement for statement, _values in recorded]
        assert len(asked) > 10
        for statement in [*asked, journal_asks.RIVALS.compiled("sqlite").text]:
            its, values = f"EXPLAIN QUERY PLAN {statement}", ("",) * statement.count("?")
            plan = await _explain(sqlite, its, values)
            tables = ("SCAN journal", "SCAN journal_subjects", "SCAN writes")
            whole = [one for one in plan if one in tables or "ix_writes_merch" in one]
            assert not whole, (statement, plan)


# Tables of the version before.


async def test_undertakings_of_the_version_before_are_numbered_in_order(state: State) -> None:
    async with at_revision(state, "0003") as store:
        for number, id_ in enumerate(["late", "early", "later"]):
            at = NOW + timedelta(seconds=[5, 0, 9][number])
            await execute(
                store,
                text(
                    "INSERT INTO journal (id, merchant, environment, key_id, key_name, operation,"
                    " request_id, fingerprint, state, instance, turn, deserted, began_at) VALUES"
                    " (:id, 'acme', 'live', 'k', 'n', 'o', 'r', 'f', 'answered', 'i', 0, false, :at)"
                ).bindparams(
                    bindparam("id", id_, Text), bindparam("at", at, journal.c.began_at.type)
                ),
            )
    async with open_store(state) as store:
        await begin(store, "new")
        those = select(journal.c.id, journal.c.number).order_by(journal.c.number)
        found = [tuple(row) for row in await fetch(store, those)]
        assert found == [("early", 1), ("late", 2), ("later", 3), ("new", 4)]
