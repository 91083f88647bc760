"""Audit log: the actions of operators, each saved in the transaction of the action and never deleted."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import insert, select

from gateway.storage.tables import acts
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.store import Store

ERASED = "erased a recipient"

EVERYONE = Tenant("", "")
"""The scope of everything: an empty merchant or environment stands for all."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An action of an operator.

    ``by`` is a user of the operating system, or the console and the address of its client; ``about``
    is the id of an operation.
    """

    at: datetime
    what: str
    by: str
    merchant: str
    environment: str
    about: str | None

    @property
    def scope(self) -> Tenant:
        return Tenant(self.merchant, self.environment)


async def note(
    store: Store,
    connection: AsyncConnection,
    what: str,
    scope: Tenant = EVERYONE,
    *,
    about: str | None = None,
) -> None:
    """Records an event in the transaction that carries out the action."""
    await connection.execute(insert(acts).values(**act_row(store, what, scope, about=about)))


def act_row(store: Store, what: str, scope: Tenant, *, about: str | None) -> dict[str, Any]:
    row = {"id": uuid4().hex, "at": store.clock(), "what": what, "by": operator(), "about": about}
    return row | scope._asdict()


async def acts_of(store: Store, scope: Tenant = EVERYONE) -> list[AuditEvent]:
    """Lists the events that affect a scope, oldest first; all of them by default."""
    those = select(*(acts.c[name] for name in AuditEvent.__dataclass_fields__)).order_by(acts.c.at)
    if scope.merchant:
        those = those.where(acts.c.merchant.in_(("", scope.merchant)))
    if scope.environment:
        those = those.where(acts.c.environment.in_(("", scope.environment)))
    async with store.read() as connection:
        return [AuditEvent(**row._mapping) for row in await connection.execute(those)]  # noqa: SLF001 - a public name


async def acts_since(store: Store, whats: Sequence[str], moment: datetime) -> dict[str, Tenant]:
    """Loads the scopes of recent events with these texts, by event id."""
    those = select(acts.c.id, acts.c.merchant, acts.c.environment).where(
        acts.c.at >= moment, acts.c.what.in_(whats)
    )
    async with store.read() as connection:
        rows = await connection.execute(those)
        return {row.id: Tenant(row.merchant, row.environment) for row in rows}


def covers(scope: Tenant, owner: Tenant) -> bool:
    return scope.merchant in ("", owner.merchant) and scope.environment in ("", owner.environment)


_acting: ContextVar[str | None] = ContextVar("acting", default=None)


@contextmanager
def acting(who: str) -> Iterator[None]:
    """Records events inside as actions of another operator than the user of this process."""
    before = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(before)


def operator() -> str:
    """The operator's name: by default the user of this process, with the original user if it runs
    under sudo.
    """
    if who := _acting.get():
        return who
    name = _name_of(os.geteuid())
    before = os.environ.get("SUDO_USER", "")
    return f"{before} as {name}" if before and before != name else name


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # containers run with user ids that have no name
        return f"uid {uid}"


def told_scope(scope: Tenant) -> str:
    """A scope as text for operators."""
    whom = f"merchant {scope.merchant}" if scope.merchant else "every merchant"
    return f"{whom}, {scope.environment or 'live and sandbox'}"
