"""A PostgreSQL database for the simulation, whose time stands still during a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from threading import Thread
from typing import Any, TypeVar

from sqlalchemy import Connection, make_url, text

from gateway.storage.database import Body
from gateway.storage.engine import open_database, run_in_sqlalchemy_transaction

Result = TypeVar("Result")


class PostgresqlConnection:
    """Runs one transaction at a time, on an event loop of its own in another thread."""

    def __init__(self, url: str) -> None:
        self._address = make_url(url)
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        self._database = open_database(self._address)

    def _await(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def run_transaction(self, body: Body[Result], *, writes: bool) -> Result:
        return self._await((self._database.write if writes else self._database.read)(body))

    def run_in_sqlalchemy(self, function: Callable[[Connection], Result]) -> Result:
        return self._await(run_in_sqlalchemy_transaction(self._address, function))

    def fetch(self, query: Any, **parameters: Any) -> Sequence[Any]:
        return self.run_transaction(lambda tx: tx.fetch(query, parameters), writes=False)

    def execute(self, *statements: str) -> None:
        async def execute_all(tx: Any) -> None:
            for statement in statements:
                await tx.execute(text(statement))

        self.run_transaction(execute_all, writes=True)
