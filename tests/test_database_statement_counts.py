"""Numbers of database statements and commits of a request, as a guard against regressions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sqlite3 import SQLITE_DELETE, SQLITE_INSERT, SQLITE_OK, SQLITE_UPDATE, Connection

import pytest

from gateway.simulator import Service
from gateway.storage import engine as engines
from tests.payouts import (
    create_batch,
    create_recipient,
    open_gateway_and_service,
    request_successfully,
)
from tests.sockets import wait_until

REQUEST_TABLES = ("operations", "upstream_writes", "object_states", "legacy_ids", "freezes")
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

    def open_traced(self, path: Path, seconds: float) -> Connection:
        connection = self._open_connection(path, seconds)
        self._connection_count += 1
        number = self._connection_count
        connection.set_trace_callback(lambda text: self._statements.append((number, text)))
        # A brief read that meets a commit is planned once more, by the connection that writes.
        records_reads = not seconds
        connection.set_authorizer(partial(self._record_planning, records_reads))
        return connection

    def _record_planning(
        self, records_reads: bool, action: int, table: str | None, *_: object
    ) -> int:
        is_recorded = records_reads or action in (SQLITE_DELETE, SQLITE_INSERT, SQLITE_UPDATE)
        if is_recorded and table in {name.strip() for name in REQUEST_TABLES}:
            self.planned_tables.append(table)
        return SQLITE_OK

    @property
    def answered_count(self) -> int:
        """The number of operations that are committed as answered."""
        ends = [at for at, (_, text) in enumerate(self._statements) if text.startswith("COMMIT")]
        committed = self._statements[: ends[-1]] if ends else []
        return sum(
            text.startswith("UPDATE operations SET state='answered'") for _, text in committed
        )

    @contextmanager
    def record_transactions(self) -> Iterator[list[list[str]]]:
        """The transactions meanwhile that are about requests: the statements of each.

        What is written once in a while is in the same transactions, where it comes at that moment.
        """
        found: list[list[str]] = []
        first = len(self._statements)
        yield found
        open_transactions: dict[int, list[str]] = {}
        for number, entry in self._statements[first:]:
            if entry.startswith("BEGIN"):
                open_transactions[number] = []
            elif entry.startswith("COMMIT") and number in open_transactions:
                found.append(open_transactions.pop(number))
            elif entry.startswith("ROLLBACK"):  # a brief read that met a commit is repeated
                open_transactions.pop(number, None)
            elif number in open_transactions and not entry.startswith("PRAGMA"):
                open_transactions[number].append(entry)
        relevant = [
            [entry for entry in some if any(name in entry for name in REQUEST_TABLES)]
            for some in found
        ]
        found[:] = [some for some in relevant if some]


def count_commits(transactions: list[list[str]]) -> int:
    return sum(any(not entry.startswith("SELECT") for entry in some) for some in transactions)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StatementRecorder:
    made = StatementRecorder()
    monkeypatch.setattr(engines, "open_sqlite_connection", made.open_traced)
    # Whatever goes round by itself looks there too.
    for where in (
        "writes.reconciler.SWEEP_SECONDS",
        "operator.restore_check.CHECK_INTERVAL_SECONDS",
    ):
        monkeypatch.setattr(f"gateway.{where}", 3600.0)
    return made


async def test_read_executes_one_select(tmp_path: Path, recorder: StatementRecorder) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        await wait_until(lambda: recorder.answered_count == 1)
        await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        with recorder.record_transactions() as read:
            await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        assert (count_commits(read), sum(map(len, read))) == (0, 1), read


async def test_write_takes_four_commits(tmp_path: Path, recorder: StatementRecorder) -> None:
    """Entered; what was made remembered, before more is read; done, with the ids that it is called
    by; and that the answer has come, with what else is committed then.
    """
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        # Deliveries that follow each other closely are saved together.
        await wait_until(lambda: recorder.answered_count == 1)
        await create_batch(gateway, recipient, "1.00")
        await wait_until(lambda: recorder.answered_count == 2)
        with recorder.record_transactions() as written:
            await create_batch(gateway, recipient, "2.00")
            await wait_until(lambda: recorder.answered_count == 3)
        assert count_commits(written) == 4, written
        assert sum(map(len, written)) <= 19, written


async def test_statements_are_planned_once(tmp_path: Path, recorder: StatementRecorder) -> None:
    """SQLite does so where a value that it is given may decide which index serves: with a partial
    one of that column.
    """
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
