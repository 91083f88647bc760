"""What operators did to the gateway, when, and who: written with what they did, and kept for good."""

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
    from gateway.storage.database import Transaction
    from gateway.storage.store import Store

ERASED = "erased a recipient"

EVERYONE = Tenant("", "")
"""A scope; an empty merchant or environment is every one."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """``by`` is a user of the operating system, or the console and the address that it was asked
    from; ``about`` an undertaking's id.
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
    tx: Transaction,
    what: str,
    scope: Tenant = EVERYONE,
    *,
    about: str | None = None,
) -> None:
    """Writes an act down in the transaction that carries it out."""
    await tx.execute(insert(acts).values(**act_row(store, what, scope, about=about)))


def act_row(store: Store, what: str, scope: Tenant, *, about: str | None) -> dict[str, Any]:
    row = {"id": uuid4().hex, "at": store.clock(), "what": what, "by": operator(), "about": about}
    return row | scope._asdict()


async def acts_of(store: Store, scope: Tenant = EVERYONE) -> list[AuditEvent]:
    """Those that concern a merchant and environment, the first first; all of them by default."""
    those = select(*(acts.c[name] for name in AuditEvent.__dataclass_fields__)).order_by(acts.c.at)
    if scope.merchant:
        those = those.where(acts.c.merchant.in_(("", scope.merchant)))
    if scope.environment:
        those = those.where(acts.c.environment.in_(("", scope.environment)))
    return [AuditEvent(**row._asdict()) for row in await store.read(lambda tx: tx.fetch(those))]


async def acts_since(store: Store, whats: Sequence[str], moment: datetime) -> dict[str, Tenant]:
    """By their ids, the scopes of acts of some kinds."""
    those = select(acts.c.id, acts.c.merchant, acts.c.environment).where(
        acts.c.at >= moment, acts.c.what.in_(whats)
    )
    rows = await store.read(lambda tx: tx.fetch(those))
    return {row.id: Tenant(row.merchant, row.environment) for row in rows}


def covers(scope: Tenant, owner: Tenant) -> bool:
    return scope.merchant in ("", owner.merchant) and scope.environment in ("", owner.environment)


_acting: ContextVar[str | None] = ContextVar("acting", default=None)


@contextmanager
def acting(who: str) -> Iterator[None]:
    """What is noted inside was done by somebody else than the user who runs this process."""
    before = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(before)


def operator() -> str:
    """Who does it: by default who runs this command, and whose rights that user has where those
    are another's.
    """
    if who := _acting.get():
        return who
    name = _name_of(os.geteuid())
    before = os.environ.get("SUDO_USER", "")
    return f"{before} as {name}" if before and before != name else name


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # containers run under numbers that nobody named
        return f"uid {uid}"


def told_scope(scope: Tenant) -> str:
    """A scope in words."""
    whom = f"merchant {scope.merchant}" if scope.merchant else "every merchant"
    return f"{whom}, {scope.environment or 'live and sandbox'}"
