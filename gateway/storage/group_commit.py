"""What is to be done in the state at one time, done in one transaction: a commit costs as much for
many as for one.

Whoever asks while a transaction is under way waits for the next, and that takes all who wait. Nobody
is told anything before the transaction that did it has been committed. What one of them does wrong is
nobody else's trouble: where it had changed something by then, all of it is taken back, the others are
done anew without it, and it alone after them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from gateway.storage.errors import StoreUnavailable, translate_database_errors
from gateway.storage.statements import Made, Transaction

AT_ONCE = 64
"""How many are done in one transaction."""

PATIENCE_SECONDS = 1.0
"""A state that took longer to fail is not tried again by those who waited meanwhile."""


@dataclass(slots=True)
class Done(Generic[Made]):
    """What came of a work: what it returned, or why it did not."""

    made: Made | None = None
    failure: Exception | None = None


class TransactionAborted(Exception):
    """A transaction was taken back for what one of its works met; None where nobody knows which."""

    def __init__(self, number: int | None) -> None:
        super().__init__(number)
        self.number = number


class Database(Protocol):
    async def carry_out(self, works: Sequence[Transaction[Any]]) -> list[Done[Any]]:
        """All of them in one transaction, committed by the time that it returns.

        A work that fails before it has changed anything is left out. Raises Spoilt where another
        one fails and there are more, and what the driver raises where no work is to blame.
        """

    def at_once(self, work: Transaction[Any]) -> Done[Any] | None:
        """The same of one work, where nothing has to be waited for; None where something has."""


@dataclass(slots=True, eq=False)
class _Waiting:
    work: Transaction[Any]
    done: asyncio.Future[Any]


class GroupCommit:
    """``lanes`` is how many transactions may be under way at a time; ``turn`` is held by each.
    ``note`` is for changes: it is told why some could not be made.
    """

    def __init__(
        self,
        database: Database,
        where: str,
        turn: AbstractAsyncContextManager[object],
        lanes: int = 1,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._database = database
        self._note = note
        self._where = where
        self._turn = turn
        self._lanes = lanes
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self.transactions = 0
        """How many were begun."""
        self.works = 0
        """How many works were done in them."""

    async def carry_out(self, work: Transaction[Made], within: float = 0.0) -> Made:
        """What came of it, once it is committed; raises what it raises, and StoreUnavailable.

        It is carried out also where whoever asked is cancelled meanwhile. For so many seconds it may
        wait for a transaction of somebody else's.
        """
        if not (self._waiting or self._running) and (done := self._done_at_once(work)):
            return done.made  # type: ignore[return-value] # it has not failed
        loop = asyncio.get_running_loop()
        waiting = _Waiting(work, loop.create_future())
        self._waiting.append(waiting)
        if within:
            loop.call_later(within, self._go)
        else:
            self._go()
        made: Made = await waiting.done
        return made

    def _done_at_once(self, work: Transaction[Made]) -> Done[Made] | None:
        try:
            done = self._database.at_once(work)
        except Exception:
            with translate_database_errors(
                self._where, self._note
            ):  # entered by no reading that goes well
                raise
        if done is not None:
            self.transactions += 1
            self.works += 1
        return done

    async def end(self) -> None:
        """Returns when nothing is under way, or waits, any more."""
        self._go()
        while self._running:
            await asyncio.wait(self._running)

    def _go(self) -> None:
        if self._waiting and len(self._running) < self._lanes:
            self._running.add(asyncio.ensure_future(self._run()))

    async def _run(self) -> None:
        try:
            while self._waiting:
                async with self._turn:
                    await self._together(self._taken())
        finally:
            # Here, and not when the task is seen to be done: whoever asks in between would wait for it.
            self._running = {one for one in self._running if one is not asyncio.current_task()}

    def _taken(self) -> list[_Waiting]:
        """Those whose turn it is: as they came, but for those that would have to wait for another."""
        taken: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        locked: set[str] = set()
        while self._waiting and len(taken) < AT_ONCE:
            one = self._waiting.popleft()
            if locked.isdisjoint(one.work.locks):
                taken.append(one)
            else:
                left.append(one)
            locked |= one.work.locks
        self._waiting.extendleft(reversed(left))
        return taken

    async def _together(self, those: list[_Waiting]) -> None:
        alone: list[_Waiting] = []
        while those:
            try:
                await self._transaction(those)
            except TransactionAborted as spoilt:
                its = those[:] if spoilt.number is None else [those[spoilt.number]]
                alone += its
                those = [one for one in those if one not in its]
            else:
                break
        for one in alone:
            await self._transaction([one])

    async def _transaction(self, those: Sequence[_Waiting]) -> None:
        """Tells each what came of it; raises Spoilt, and then has told nobody."""
        self.transactions += 1
        began = time.monotonic()
        try:
            with translate_database_errors(self._where, self._note):
                done = await self._database.carry_out([one.work for one in those])
        except TransactionAborted:
            raise
        except Exception as error:  # noqa: BLE001 - it is everybody's who waits for it
            done = [Done(failure=error) for _ in those]
            took = time.monotonic() - began
            # What a work raises itself, such as a Conflict, says nothing of the state.
            if isinstance(error, StoreUnavailable) and took > PATIENCE_SECONDS:
                self._give_up(error)
        self.works += len(those)
        for one, its in zip(those, done, strict=True):
            if one.done.done():  # whoever asked does not wait any more
                continue
            if its.failure is None:
                one.done.set_result(its.made)
            else:
                one.done.set_exception(its.failure)

    def _give_up(self, error: StoreUnavailable) -> None:
        """Whoever came meanwhile has waited for the same, and would wait as long once more."""
        while self._waiting:
            one = self._waiting.popleft()
            if not one.done.done():
                one.done.set_exception(error)
