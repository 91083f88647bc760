"""Sets up and reads the state of a gateway, so that tests depend on no table and no repository.

Objects are the states that the gateway stores between requests, by kind and id; ``facts`` is the JSON object of
one state. Every function takes a gateway's settings and opens its database for its duration, also while
the gateway runs; ``open_state`` keeps it open for several steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sqlalchemy import Select, create_engine, select, update

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.config.settings import Settings
from gateway.config.settings import State as StateSettings
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.database import Transaction
from gateway.storage.engine import find_sqlite_file, parse_state_url
from gateway.storage.migrate import migrate
from gateway.storage.sql import CompiledStatement, Parameters
from gateway.storage.tables import operations, upstream_writes
from gateway.writes.states import (
    ANSWERED,
    CONFIRMED,
    DONE,
    IN_DOUBT,
    MAY_EXIST,
    RUNNING,
    SENT,
    UNDONE,
)
from mappings.effects import CompareAndSet

if TYPE_CHECKING:
    import pytest

ENVIRONMENT = "sandbox"
KEY = {
    "merchant": "demo",
    "environment": ENVIRONMENT,
    "api_key": "an-api-key-for-tests",
    "access_key": "SIMULATORACCESSKEY",
    "secret_key": "simulator-secret-key",
}
TENANT = Tenant(KEY["merchant"], ENVIRONMENT)

Objects = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Kind to id to facts."""


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """A write to the service as it is recorded, with the state of its operation."""

    method: str
    path: str
    state: str
    object_id: str | None
    operation_state: str

    @property
    def is_executed(self) -> bool:
        """Whether the gateway knows that the service executed it."""
        return self.state in (ANSWERED, CONFIRMED)

    @property
    def is_open(self) -> bool:
        """Whether it was sent and its outcome is not known yet."""
        return self.state == SENT

    @property
    def may_exist(self) -> bool:
        return self.state in (SENT, MAY_EXIST)

    @property
    def has_open_operation(self) -> bool:
        return self.operation_state in (RUNNING, IN_DOUBT)

    @property
    def has_closed_operation(self) -> bool:
        return self.operation_state in (DONE, ANSWERED, UNDONE)


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that is not over; ``path`` is that of a write without an outcome, if it has one."""

    state: str
    operation: str
    reason: str | None
    path: str | None


def select_writes() -> Select[Any]:
    """Rows with the fields of ``StoredWrite``."""
    columns = (
        upstream_writes.c.method,
        upstream_writes.c.path,
        upstream_writes.c.state,
        upstream_writes.c.object_id,
    )
    return select(*columns, operations.c.state.label("operation_state")).join(
        operations, operations.c.id == upstream_writes.c.operation_id
    )


def select_open_operations() -> Select[Any]:
    """Rows with the fields of ``OpenOperation``."""
    is_unanswered = (upstream_writes.c.operation_id == operations.c.id) & (
        upstream_writes.c.state == SENT
    )
    return (
        select(
            operations.c.state, operations.c.operation, operations.c.reason, upstream_writes.c.path
        )
        .join(upstream_writes, is_unanswered, isouter=True)
        .where(operations.c.state.in_((RUNNING, IN_DOUBT)))
    )


@dataclass(frozen=True, slots=True)
class State:
    """An open database."""

    store: Store

    async def import_api_keys(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Imports keys as the command line does."""
        data = "\n".join(json.dumps(line) for line in lines).encode()
        await import_keys(self.store, parse_key_lines(data))

    async def put_objects(self, objects: Objects, tenant: Tenant = TENANT) -> None:
        object_states = ObjectStateStore(self.store)
        for kind, facts_by_id in objects.items():
            for id_, facts in facts_by_id.items():
                await compare_and_set(object_states, tenant, kind, id_, facts)

    async def list_objects(
        self, kinds: Iterable[str], tenant: Tenant = TENANT
    ) -> dict[str, dict[str, dict[str, Any]]]:
        object_states = ObjectStateStore(self.store)
        return {kind: await object_states.load_facts_by_id(tenant, kind) for kind in kinds}

    async def list_writes(self) -> list[StoredWrite]:
        rows = await fetch(self.store, select_writes())
        return [StoredWrite(**row._asdict()) for row in rows]

    async def count_operations(self) -> Counter[str]:
        """How many operations are in each state."""
        return Counter(row.state for row in await fetch(self.store, select(operations.c.state)))

    async def age_writes(self, seconds: float) -> None:
        """Makes every recorded write, and its operation, older by so many seconds."""
        for operation in await fetch(self.store, select(operations)):
            aged_time = operation.started_at - timedelta(seconds=seconds)
            await execute(
                self.store,
                update(operations)
                .where(operations.c.id == operation.id)
                .values(started_at=aged_time),
            )
        for row in await fetch(self.store, select(upstream_writes)):
            is_row = (
                upstream_writes.c.operation_id == row.operation_id,
                upstream_writes.c.number == row.number,
            )
            aged_time = row.recorded_at - timedelta(seconds=seconds)
            await execute(
                self.store, update(upstream_writes).where(*is_row).values(recorded_at=aged_time)
            )


@asynccontextmanager
async def open_state(settings: Settings, *, create: bool = True) -> AsyncIterator[State]:
    async with open_store(settings.state, create=create) as store:
        yield State(store)


async def put_objects(settings: Settings, objects: Objects, tenant: Tenant = TENANT) -> None:
    async with open_state(settings) as state:
        await state.put_objects(objects, tenant)


async def load_objects(
    settings: Settings, kinds: Iterable[str], tenant: Tenant = TENANT
) -> dict[str, dict[str, dict[str, Any]]]:
    async with open_state(settings) as state:
        return await state.list_objects(kinds, tenant)


async def load_writes(settings: Settings) -> list[StoredWrite]:
    async with open_state(settings, create=False) as state:
        return await state.list_writes()


async def load_in_doubt_writes(settings: Settings) -> list[StoredWrite]:
    return [write for write in await load_writes(settings) if write.is_open]


async def count_operations_by_state(settings: Settings) -> Counter[str]:
    async with open_state(settings, create=False) as state:
        return await state.count_operations()


# New databases. Migrations take longer than most tests, so that their result is copied.

_files_with_key: list[bytes] = []
"""The files of a database into which KEY was imported."""


async def import_api_keys(settings: Settings, lines: list[dict[str, Any]]) -> None:
    """Imports keys as the command line does; creates the database if there is none."""
    files = database_files(settings.state)
    is_default = lines == [KEY] and files and not any(file.exists() for file in files)
    if is_default and _files_with_key:
        for file, data in zip(files, _files_with_key, strict=True):
            _write_private_file(file, data)
        return
    create_database(settings.state)
    async with open_state(settings) as state:
        await state.import_api_keys(lines)
    if is_default:
        _files_with_key[:] = [file.read_bytes() for file in files]  # two tasks may get here


def database_files(state: StateSettings) -> list[Path]:
    """The database and its encryption key; none for PostgreSQL."""
    file = find_sqlite_file(parse_state_url(state.url))
    return [file, state.encryption_key_file] if file else []


def create_database(state: StateSettings) -> StateSettings:
    """Creates the tables if there is no SQLite file yet, so that the first start migrates nothing."""
    for file in database_files(state)[:1]:
        if not file.exists():
            _write_private_file(file, _build_migrated_file())
    return state


@cache
def _build_migrated_file() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            migrate(connection, "")
        engine.dispose()
        return file.read_bytes()


def _write_private_file(file: Path, data: bytes) -> None:
    file.touch(0o600)  # the gateway refuses files that others can read
    file.write_bytes(data)


# Statements of tests


async def fetch(store: Store, statement: Any) -> list[Any]:
    return await store.read(lambda transaction: transaction.fetch(statement))


async def execute(store: Store, *statements: Any) -> None:
    """Executes statements in one transaction."""

    async def execute_all(transaction: Transaction) -> None:
        for statement in statements:
            await transaction.execute(statement)

    await store.write(execute_all)


@contextmanager
def record_statements(text: str = "") -> Iterator[list[tuple[str, Sequence[Any]]]]:
    """Records the SQLite statements that contain ``text``, with their parameters."""
    statements: list[tuple[str, Sequence[Any]]] = []
    field: Any = CompiledStatement.build_arguments

    def find_recording_function(compiled: CompiledStatement) -> Callable[[Parameters], Any]:
        def record(parameters: Parameters) -> Sequence[Any]:
            arguments: Sequence[Any] = field.__get__(compiled)(parameters)
            if text in compiled.text:
                statements.append((compiled.text, arguments))
            return arguments

        return record

    recording = property(find_recording_function, field.__set__)
    with patch.object(CompiledStatement, "build_arguments", recording):
        yield statements


def break_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every read of a database fail, as during an outage."""

    async def refuse(*_: object, **_options: object) -> None:
        raise StoreUnavailable("the database is down", means="nothing is found", do="start it")

    monkeypatch.setattr(Store, "read", refuse)


async def compare_and_set(
    object_states: ObjectStateStore,
    owner: Tenant,
    kind: str,
    id_: str,
    facts: Mapping[str, Any],
    *,
    find: Mapping[str, Any] | None = None,
) -> None:
    """Merge facts into those of an object; Conflict if the stored ones differ from ``find``."""
    record = CompareAndSet(kind, id_, facts, find or {})
    await object_states.compare_and_set_all(owner, [record])
