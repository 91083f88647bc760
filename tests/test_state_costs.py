"""How often a request goes to the state: by that its price goes, and here it cannot creep back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import SQLITE_OK, Connection

import pytest

from gateway.simulator import Service
from gateway.storage import engine as engines
from tests.payday import done, make_batch, make_recipient, open_town
from tests.sockets import until

TABLES = ("journal", "writes", "remembered", " ids", "freezes")
"""What requests read and write; the rest is written once in a while, however many there are."""


class Ledger:
    """What the connections to an SQLite state were asked."""

    def __init__(self) -> None:
        self._asked: list[str] = []
        self._opened = engines.sqlite_connection
        self.planned: list[str] = []
        """The tables of each statement, as often as it was planned: SQLite asks for leave then."""

    def opened(self, path: Path, seconds: float) -> Connection:
        connection = self._opened(path, seconds)
        connection.set_trace_callback(self._asked.append)
        connection.set_authorizer(self._allowed)
        return connection

    def _allowed(self, _what: int, table: str | None, *_: object) -> int:
        if table in {name.strip() for name in TABLES}:
            self.planned.append(table)
        return SQLITE_OK

    @property
    def answered(self) -> int:
        """How many undertakings are noted as over, with all that is written of that."""
        ends = [number for number, one in enumerate(self._asked) if one.startswith("COMMIT")]
        those = self._asked[: ends[-1]] if ends else []
        return sum(one.startswith("UPDATE journal SET state='answered'") for one in those)

    @contextmanager
    def page(self) -> Iterator[list[list[str]]]:
        """The transactions meanwhile that are about requests: the statements of each.

        What is written once in a while is in the same transactions, where it comes at that moment.
        """
        found: list[list[str]] = []
        first = len(self._asked)
        yield found
        for one in self._asked[first:]:
            if one.startswith("BEGIN"):
                found.append([])
            elif found and not one.startswith(("COMMIT", "ROLLBACK", "PRAGMA")):
                found[-1].append(one)
        its = [[one for one in some if any(name in one for name in TABLES)] for some in found]
        found[:] = [some for some in its if some]


def commits(transactions: list[list[str]]) -> int:
    return sum(any(not one.startswith("SELECT") for one in some) for some in transactions)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    monkeypatch.setattr(engines, "sqlite_connection", made.opened)
    # Whatever goes round by itself looks there too.
    for where in ("writes.settling.SWEEP_SECONDS", "operator.restore_check.CHECK_INTERVAL_SECONDS"):
        monkeypatch.setattr(f"gateway.{where}", 3600.0)
    return made


async def test_a_read_looks_up_what_is_remembered_and_nothing_else(
    tmp_path: Path, ledger: Ledger
) -> None:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        recipient = await make_recipient(house)
        await until(lambda: ledger.answered == 1)
        await done(house, "GET", f"/recipients/{recipient}")
        with ledger.page() as read:
            await done(house, "GET", f"/recipients/{recipient}")
        assert (commits(read), sum(map(len, read))) == (0, 1), read


async def test_a_write_is_committed_where_it_must_be_and_no_more_often(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Entered; what was made remembered, before more is read; done, with the ids that it is called
    by; and that the answer has come, with what else is committed then.
    """
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        recipient = await make_recipient(house)
        await make_batch(house, recipient, "1.00")
        await until(lambda: ledger.answered == 2)
        with ledger.page() as written:
            await make_batch(house, recipient, "2.00")
            await until(lambda: ledger.answered == 3)
        assert commits(written) == 4, written
        assert sum(map(len, written)) <= 19, written


async def test_no_statement_is_planned_a_second_time(tmp_path: Path, ledger: Ledger) -> None:
    """SQLite does so where a value that it is given may decide which index serves: with a partial
    one of that column.
    """
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        recipient = await make_recipient(house)
        for amount in ("1.00", "2.00"):
            await make_batch(house, recipient, amount)
            await done(house, "GET", f"/recipients/{recipient}")
        await until(lambda: ledger.answered == 3)
        assert ledger.planned
        ledger.planned.clear()
        await make_batch(house, recipient, "3.00")
        await done(house, "GET", f"/recipients/{recipient}")
        await until(lambda: ledger.answered == 4)
        assert ledger.planned == []
