"""Audit log of operators' actions. Each event is saved in the transaction of its action."""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import select

from gateway.storage.database import Transaction
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import audit_events
from gateway.storage.tenants import Tenant

RECIPIENT_ERASED = "erased a recipient"

ALL_TENANTS = Tenant("", "")
"""The scope of everything: an empty merchant or environment stands for all."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An action of an operator.

    ``actor`` is a user of the operating system, or the console and the address of its client.
    """

    at: datetime
    action: str
    actor: str
    merchant: str
    environment: str
    operation_id: str | None

    @property
    def scope(self) -> Tenant:
        return Tenant(self.merchant, self.environment)


async def record_audit_event(
    store: Store,
    tx: Transaction,
    action: str,
    scope: Tenant = ALL_TENANTS,
    *,
    operation_id: str | None = None,
) -> None:
    """Records an event in the transaction that carries out the action."""
    event_row = build_event_row(store, action, scope, operation_id=operation_id)
    await tx.execute(INSERT_AUDIT_EVENT, event_row)


INSERT_AUDIT_EVENT = Statement(
    lambda kind: kind.insert(audit_events), tuple(column.name for column in audit_events.c)
)


def build_event_row(
    store: Store, action: str, scope: Tenant, *, operation_id: str | None
) -> dict[str, Any]:
    row = {
        "id": uuid4().hex,
        "at": store.clock(),
        "action": action,
        "actor": find_operator_name(),
        "operation_id": operation_id,
    }
    return row | scope._asdict()


async def list_audit_events(
    store: Store, scope: Tenant = ALL_TENANTS, *, prefixes: tuple[str, ...] = ("",)
) -> list[AuditEvent]:
    """Lists the events that affect a scope, oldest first; all of them by default.

    ``prefixes``: the beginnings of their actions.
    """
    query = select(*(audit_events.c[name] for name in AuditEvent.__dataclass_fields__)).order_by(
        audit_events.c.at
    )
    if scope.merchant:
        query = query.where(audit_events.c.merchant.in_(("", scope.merchant)))
    if scope.environment:
        query = query.where(audit_events.c.environment.in_(("", scope.environment)))
    rows = await store.fetch(query)
    return [AuditEvent(**row._asdict()) for row in rows if row.action.startswith(prefixes)]


def is_tenant_in_scope(scope: Tenant, tenant: Tenant) -> bool:
    return scope.merchant in ("", tenant.merchant) and scope.environment in ("", tenant.environment)


_acting_operator: ContextVar[str | None] = ContextVar("acting", default=None)


@contextmanager
def attribute_events_to_operator(operator_name: str) -> Iterator[None]:
    """Records events inside as actions of another operator than the user of this process."""
    token = _acting_operator.set(operator_name)
    try:
        yield
    finally:
        _acting_operator.reset(token)


def find_operator_name() -> str:
    """Returns the name under which events are recorded.

    By default it is the user of this process, with the original user if it runs under sudo.
    """
    if acting_operator := _acting_operator.get():
        return acting_operator
    name = _find_user_name(os.geteuid())
    sudo_user = os.environ.get("SUDO_USER", "")
    return f"{sudo_user} as {name}" if sudo_user and sudo_user != name else name


def _find_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # containers run with user ids that have no name
        return f"uid {uid}"


def describe_scope(scope: Tenant) -> str:
    """Describes a scope for operators."""
    merchant = f"merchant {scope.merchant}" if scope.merchant else "every merchant"
    return f"{merchant}, {scope.environment or 'live and sandbox'}"
