"""Numbers of database statements and commits of a request, as a guard against regressions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.storage import engine as engines
from gateway.storage.sqlite_driver import sqlite3
from tests.payouts import (
    create_batch,
    create_recipient,
    open_gateway_and_service,
    request_successfully,
)
from tests.simulator import Service
from tests.sockets import wait_until

REQUEST_TABLES = (
    "operations",
    "upstream_writes",
    "recipient_states",
    "batches",
    "batch_payments",
    "id_redirects",
    "legacy_ids",
    "freezes",
)
"""Tables that requests use; other tables are written periodically, regardless of load."""


class StatementRecorder:
    """Records the statements of the SQLite connections."""

    def __init__(self) -> None:
        self._statements: list[tuple[int, str]] = []
        """Numbers of connections, and their statements."""
        self._connection_count = 0
        self._open_connection = engines.open_sqlite_connection
        self.planned_tables: list[str] = []
        """The tables of planned statements, from SQLite's authorizer, which runs at planning."""

    def open_traced(self, path: Path, seconds: float) -> sqlite3.Connection:
        connection = self._open_connection(path, seconds)
        self._connection_count += 1
        number = self._connection_count
        connection.set_trace_callback(lambda text: self._statements.append((number, text)))
        # A short read during a commit is planned again, by the writing connection.
        records_reads = not seconds
        connection.set_authorizer(partial(self._record_planning, records_reads))
        return connection

    def _record_planning(
        self, records_reads: bool, action: int, table: str | None, *_: object
    ) -> int:
        is_recorded = records_reads or action in (
            sqlite3.SQLITE_DELETE,
            sqlite3.SQLITE_INSERT,
            sqlite3.SQLITE_UPDATE,
        )
        if is_recorded and table in {name.strip() for name in REQUEST_TABLES}:
            self.planned_tables.append(table)
        return sqlite3.SQLITE_OK

    @property
    def answered_count(self) -> int:
        """The number of operations that are committed as answered."""
        commit_positions = [
            position
            for position, (_, text) in enumerate(self._statements)
            if text.startswith("COMMIT")
        ]
        committed_statements = self._statements[: commit_positions[-1]] if commit_positions else []
        return sum(
            text.startswith("UPDATE operations SET state='answered'")
            for _, text in committed_statements
        )

    @contextmanager
    def record_transactions(self) -> Iterator[list[list[str]]]:
        """The statements of each transaction meanwhile that belongs to a request.

        Periodic writes may be in the same transactions.
        """
        transactions: list[list[str]] = []
        start_position = len(self._statements)
        yield transactions
        open_transactions: dict[int, list[str]] = {}
        for number, entry in self._statements[start_position:]:
            if entry.startswith("BEGIN"):
                open_transactions[number] = []
            elif entry.startswith("COMMIT") and number in open_transactions:
                transactions.append(open_transactions.pop(number))
            elif entry.startswith("ROLLBACK"):  # a brief read that met a commit is repeated
                open_transactions.pop(number, None)
            elif number in open_transactions and not entry.startswith("PRAGMA"):
                open_transactions[number].append(entry)
        groups = [
            [entry for entry in group if any(name in entry for name in REQUEST_TABLES)]
            for group in transactions
        ]
        transactions[:] = [group for group in groups if group]


def count_commits(transactions: list[list[str]]) -> int:
    return sum(
        any(not entry.startswith("SELECT") for entry in statements) for statements in transactions
    )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StatementRecorder:
    statement_recorder = StatementRecorder()
    monkeypatch.setattr(engines, "open_sqlite_connection", statement_recorder.open_traced)
    # Periodic tasks read there, too.
    for method_name in (
        "writes.reconciler.SWEEP_SECONDS",
        "operator.restore_check.CHECK_INTERVAL_SECONDS",
    ):
        monkeypatch.setattr(f"gateway.{method_name}", 3600.0)
    return statement_recorder


async def test_read_executes_at_most_one_select(
    tmp_path: Path, recorder: StatementRecorder
) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        await wait_until(lambda: recorder.answered_count == 1)
        await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        with recorder.record_transactions() as read:
            await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        # None while the database is unchanged; what is recorded periodically changes it.
        assert (count_commits(read), sum(map(len, read)) <= 1) == (0, True), read


async def test_write_takes_four_commits(tmp_path: Path, recorder: StatementRecorder) -> None:
    """Commits: the write is entered; the created object is stored, before more is read; the operation is done,
    with its alias ids; and the delivery is recorded, together with other pending rows.
    """
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        # Deliveries that follow each other closely are saved together.
        await wait_until(lambda: recorder.answered_count == 1)
        await create_batch(gateway, recipient, "1.00")
        await wait_until(lambda: recorder.answered_count == 2)
        with recorder.record_transactions() as transactions:
            await create_batch(gateway, recipient, "2.00")
            await wait_until(lambda: recorder.answered_count == 3)
        assert count_commits(transactions) == 4, transactions
        assert sum(map(len, transactions)) <= 9, transactions


async def test_delivery_is_recorded_with_the_next_write(
    tmp_path: Path, recorder: StatementRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.writes.reconciler._DELIVERY_DELAY_SECONDS", 3600.0)
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(100):  # the acknowledgement of a response may be seen late
            await create_batch(gateway, recipient, "1.00")
            if recorder.answered_count:
                break
        assert recorder.answered_count


async def test_statements_are_planned_once(tmp_path: Path, recorder: StatementRecorder) -> None:
    """SQLite prepares a statement again if a parameter decides whether a partial index of the column is usable."""
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        await wait_until(lambda: recorder.answered_count == 1)
        for number, amount in enumerate(("1.00", "2.00"), 2):
            await create_batch(gateway, recipient, amount)
            await request_successfully(gateway, "GET", f"/recipients/{recipient}")
            await wait_until(lambda number=number: recorder.answered_count == number)
        assert recorder.planned_tables
        recorder.planned_tables.clear()
        await create_batch(gateway, recipient, "3.00")
        await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        await wait_until(lambda: recorder.answered_count == 4)
        assert recorder.planned_tables == []
