from __future__ import annotations

import asyncio
import gc
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.database import Transaction
from gateway.storage.encryption import EncryptionContext, build_key_line
from gateway.storage.engine import parse_state_url, run_in_sqlalchemy_transaction
from gateway.storage.id_rows import save_legacy_ids
from gateway.storage.key_file import add_encryption_key, create_key_file, read_key_file
from gateway.storage.migrate import build_alembic_config, find_newest_revision
from gateway.storage.operations import OperationRepository
from gateway.storage.sqlite_driver import JOURNAL_MODE, sqlite3
from gateway.storage.tables import (
    UTCDateTime,
    api_keys,
    capabilities,
    counters,
    encryption_keys,
    instances,
    metadata,
)
from tests.gateway.storage.conftest import (
    RECREATE_SCHEMA,
    build_empty_sqlite_state,
    open_store_at_revision,
    run_statements,
)
from tests.processes import build_command, build_configuration, build_environment
from tests.state import KEY, compare_and_set, execute, fetch
from tests.tcp_proxy import open_tcp_proxy

ACME = Tenant("acme", "live")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
AT = bindparam("at", NOW, UTCDateTime)

OLD_OPERATION = """
INSERT INTO encryption_keys (id, check_value, created_at) VALUES (:key_id, :check_value, :at);
INSERT INTO pairs (id, merchant, environment, access_key, secret, created_at)
VALUES ('p', 'acme', 'live', 'A', 's', :at);
INSERT INTO keys (id, name, merchant, environment, key_hash, hash_key_id, prefix, pair_id,
    allowed_ips, created_at, changed)
VALUES ('k', 'n', 'acme', 'live', 'h', :key_id, 'p', 'p', '[]', :at, 1);
INSERT INTO journal (id, merchant, environment, key_id, key_name, operation, request_id,
    fingerprint, state, why, instance, turn, deserted, asked, began_at)
VALUES ('one', 'acme', 'live', 'k', 'n', 'create_recipient', 'r',
    'f', 'unsettled', 'no answer', 'i', 3, false, :asked, :at);
INSERT INTO journal_subjects (merchant, environment, object, undertaking)
VALUES ('acme', 'live', 'R-1', 'one');
INSERT INTO journal_steps (undertaking, number, given) VALUES ('one', 0, :given);
INSERT INTO writes (undertaking, number, merchant, environment, method, path, alike, state, entered_at)
VALUES ('one', 1, 'acme', 'live', 'POST', '/recipients', 'd', 'sent', :at);
INSERT INTO acts (id, at, what, by, merchant, environment, about)
VALUES ('a', :at, 'told', 'ops', 'acme', 'live', 'one')
"""
"""A write in doubt in the tables of the version before their renaming."""


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return build_empty_sqlite_state(tmp_path)


def locate_key_file(state: State) -> Path:
    return state.encryption_key_file


def extract_sqlite_path(state: State) -> Path:
    return Path(state.url.removeprefix("sqlite:///"))


def require_one_line(text: str) -> str:
    assert "\n" not in text
    return text


async def open_and_describe_failure(state: State) -> str:
    """Return the error message of a start with this state, or an empty text if it opens."""
    try:
        async with open_store(state):
            return ""
    except StoreUnavailable as error:
        return require_one_line(str(error))


async def test_new_database_has_the_tables_of_the_code(state: State) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "compare_server_default": True}
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        )

    async with open_store(state):
        assert await run_in_sqlalchemy_transaction(parse_state_url(state.url), differences) == []


async def test_migrated_database_is_as_a_new_one(state: State) -> None:
    def describe_tables(connection: Connection) -> dict[str, list[str]]:
        """Columns, keys and indexes of each table; keys without names, which differ on SQLite."""
        inspector = inspect(connection)
        return {
            table: sorted(
                [
                    *(
                        f"{column['name']} {column['type']} {column['nullable']} {column['default']}"
                        for column in inspector.get_columns(table)
                    ),
                    str(inspector.get_pk_constraint(table)["constrained_columns"]),
                    *(
                        f"{key['constrained_columns']} {key['referred_table']}"
                        for key in inspector.get_foreign_keys(table)
                    ),
                    *(
                        f"{index['name']} {index['column_names']} {index['unique']} "
                        f"{[str(option) for option in index['dialect_options'].values()]}"
                        for index in inspector.get_indexes(table)
                    ),
                ]
            )
            for table in inspector.get_table_names()
        }

    address = parse_state_url(state.url)
    async with open_store(state) as store:
        created = await run_in_sqlalchemy_transaction(address, describe_tables)
        created_counters = await fetch(store, select(counters))
    if state.url.startswith("postgresql"):
        await asyncio.to_thread(
            run_statements, state.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"
        )
    async with open_store_at_revision(state, "0017"):
        pass
    async with open_store(state) as store:
        assert await run_in_sqlalchemy_transaction(address, describe_tables) == created
        assert await fetch(store, select(counters)) == created_counters


def test_latest_migration_is_found_by_file_name() -> None:
    assert ScriptDirectory.from_config(build_alembic_config()).get_heads() == [
        find_newest_revision()
    ]


async def test_instances_started_together_create_tables_once(postgres: State) -> None:
    await asyncio.to_thread(run_statements, postgres.url, *RECREATE_SCHEMA)
    assert (
        await asyncio.gather(*(open_and_describe_failure(postgres) for _ in range(6))) == [""] * 6
    )


def test_processes_started_together_create_tables_once(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    names = ["one", "two", "three", "four"]
    for name in names:
        (tmp_path / name).write_text(
            json.dumps({**KEY, "api_key": f"the-key-{name}", "name": name})
        )
    processes = [
        subprocess.Popen(
            [*build_command(), "keys", "import", name],
            cwd=tmp_path,
            env=build_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    outputs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(names), outputs


async def test_newer_database_is_refused_and_not_touched(state: State) -> None:
    async with open_store(state) as store:
        await execute(store, text("UPDATE alembic_version SET version_num = '9999'"))
    message = await open_and_describe_failure(state)
    assert "revision 9999" in message
    assert "newer version" in message


async def test_database_of_earlier_development_version_is_refused(state: State) -> None:
    async with open_store(state) as store:
        await execute(store, text("UPDATE alembic_version SET version_num = '0016'"))
    assert "start a version of 24 November 2026 once" in await open_and_describe_failure(state)


async def test_open_operations_survive_renamed_tables(state: State) -> None:
    """A write in doubt of the previous version is still in doubt, and its texts can be decrypted."""
    if not state.encryption_key_file.exists():
        create_key_file(state.encryption_key_file)
    keys = read_key_file(state.encryption_key_file)
    assert keys is not None
    key_id = keys.newest_key_id
    check_context = EncryptionContext("encryption_keys", key_id, "", "check_value")

    def encrypt(column: str) -> str:
        return keys.encrypt("{}", EncryptionContext("journal", "acme", "live", f"{column} of one"))

    async with open_store_at_revision(state, "0019") as store:
        for statement in OLD_OPERATION.split(";"):
            values = [
                AT,
                bindparam("asked", encrypt("asked")),
                bindparam("given", encrypt("given")),
                bindparam("key_id", key_id),
                bindparam("check_value", keys.encrypt("", check_context)),
            ]
            used_parameters = [value for value in values if f":{value.key}" in statement]
            await execute(store, text(statement).bindparams(*used_parameters))
    async with open_store(state) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        (record,) = await repository.list_unfinished()
        assert (record.state, record.fence, record.reason) == ("unsettled", 3, "no answer")
        assert (record.started_at, record.object_ids, record.request) == (NOW, ("R-1",), "{}")
        assert await repository.load_step_results(record) == ["{}"]
        (write,) = (await repository.load_writes("one"))["one"]
        assert (write.state, write.call_digest, write.recorded_at) == ("sent", "d", NOW)
        (key,) = await fetch(store, select(api_keys.c.name, api_keys.c.credentials_id))
        assert key == ("n", "p")
        (event,) = await list_audit_events(store)
        assert (event.action, event.actor, event.operation_id) == ("told", "ops", "one")


async def test_foreign_tables_are_refused_and_nothing_is_created(
    sqlite: State,
) -> None:
    with sqlite3.connect(extract_sqlite_path(sqlite)) as connection:
        connection.execute("CREATE TABLE api_keys (x)")
    assert "cannot be brought up to date" in await open_and_describe_failure(sqlite)
    tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert tables == [("api_keys",)]


async def test_created_files_are_accessible_by_owner_only(sqlite: State) -> None:
    umask_before = os.umask(0)
    try:
        assert await open_and_describe_failure(sqlite) == ""
    finally:
        os.umask(umask_before)
    for path in (extract_sqlite_path(sqlite), locate_key_file(sqlite)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_closed_database_is_one_file(sqlite: State) -> None:
    file = extract_sqlite_path(sqlite)
    async with open_store(sqlite) as store:
        await compare_and_set(ObjectStateStore(store), ACME, "batch", "B-1", {"n": 1})
        assert len([*file.parent.glob(f"{file.name}-*")]) > 0
    assert [*file.parent.glob(f"{file.name}-*")] == []


async def test_sqlite_uses_durable_commits_and_foreign_keys(sqlite: State) -> None:
    async with open_store(sqlite) as store:
        for is_brief, milliseconds in ((False, 5000), (True, 0)):
            for name, value in (
                ("journal_mode", JOURNAL_MODE.lower()),
                ("foreign_keys", 1),
                ("synchronous", 2),
                ("busy_timeout", milliseconds),
            ):
                pragma = text(f"PRAGMA {name}")
                pragma_value = await store.read(partial(_fetch_value, pragma), is_brief=is_brief)
                assert pragma_value == value, name
        now = datetime.now(UTC)
        key_row = {
            **dict.fromkeys(("id", "name", "merchant", "key_hash", "hash_key_id"), "x"),
            "environment": "live",
            "prefix": "",
            "credentials_id": "none",
            "allowed_ips": [],
            "created_at": now,
            "changed": 1,
        }
        with pytest.raises(sqlite3.IntegrityError):
            await execute(store, insert(api_keys).values(key_row))


async def _fetch_value(statement: Any, tx: Transaction) -> Any:
    return await tx.fetch_value(statement)


async def test_timestamps_are_utc_and_require_a_time_zone(state: State) -> None:
    capability_row = {"environment": "live", "name": "x", "value": "1"}
    async with open_store(state) as store:
        naive_row = {**capability_row, "learned_at": datetime(2026, 1, 1)}  # noqa: DTZ001
        with pytest.raises(ValueError, match="without a zone"):
            await execute(store, insert(capabilities).values(naive_row))
        offset = datetime.fromisoformat("2026-01-01T01:00:00.000001+05:00")
        await execute(store, insert(capabilities).values({**capability_row, "learned_at": offset}))
        ((learned_at,),) = await fetch(store, select(capabilities.c.learned_at))
    assert learned_at == offset
    assert learned_at.tzinfo is UTC


# The key file.


async def test_sqlite_creates_key_file_at_first_start_only(sqlite: State) -> None:
    assert await open_and_describe_failure(sqlite) == ""
    locate_key_file(sqlite).unlink()
    assert "there is no key file" in await open_and_describe_failure(sqlite)
    assert not locate_key_file(sqlite).exists()


async def test_postgresql_never_creates_key_file_and_explains_how(postgres: State) -> None:
    locate_key_file(postgres).unlink()
    assert "keys new-encryption-key" in await open_and_describe_failure(postgres)


async def test_different_key_file_is_detected_at_start(state: State) -> None:
    assert await open_and_describe_failure(state) == ""
    locate_key_file(state).unlink()
    create_key_file(locate_key_file(state))
    assert "has no key" in await open_and_describe_failure(state)


async def test_different_key_under_same_id_is_detected_at_start(state: State) -> None:
    assert await open_and_describe_failure(state) == ""
    key_id = locate_key_file(state).read_text().split()[0]
    locate_key_file(state).write_text(f"{key_id} {build_key_line().split()[1]}\n")
    assert f"another key under the id {key_id}" in await open_and_describe_failure(state)


async def test_key_may_be_added_but_not_removed(state: State) -> None:
    assert await open_and_describe_failure(state) == ""
    add_encryption_key(locate_key_file(state))
    assert await open_and_describe_failure(state) == ""
    last_key_line = locate_key_file(state).read_text().splitlines()[-1]
    locate_key_file(state).write_text(last_key_line + "\n")
    assert "has no key" in await open_and_describe_failure(state)


async def test_check_value_cannot_be_moved_to_another_key(state: State) -> None:
    locate_key_file(state).exists() or create_key_file(locate_key_file(state))
    add_encryption_key(locate_key_file(state))
    async with open_store(state) as store:
        first_key, second_key = await fetch(store, select(encryption_keys))
        move_check_value = update(encryption_keys).where(encryption_keys.c.id == second_key.id)
        await execute(
            store,
            delete(encryption_keys).where(encryption_keys.c.id == first_key.id),
            move_check_value.values(check_value=first_key.check_value),
        )
    assert "another key" in await open_and_describe_failure(state)


# Error messages for operators.


@pytest.mark.parametrize(
    ("url", "expected_text"),
    [
        ("sqlite://gateway.db", "instead of three"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///gateway.db?mode=ro", "no parameters"),
        ("postgresql://me:hunter2@host:port/db", "cannot be read as a URL"),
        ("postgresql://me:a@hunter2@127.0.0.1:1/db", "write @ as %40"),
        ("postgresql://me:a@127.0.0.1/hunter2@127.0.0.1:1/db", "write @ as %40"),
    ],
)
async def test_invalid_url_error_shows_valid_form(url: str, expected_text: str) -> None:
    message = await open_and_describe_failure(State(url=url))
    assert expected_text in message
    assert "sqlite:////absolute/path.db" in message
    assert "hunter2" not in message


def open_store_as_user_without_rights(
    file_name: str, mode: int, mode_of_folder: int, *, serves: bool
) -> str:
    """Returns the error of opening a store in a folder of root's with a file of that mode."""
    script = (
        "import asyncio, os, sys\n"
        "from gateway.config.settings import State\n"
        "from gateway.storage import StoreUnavailable, open_store\n"
        "import alembic.autogenerate, sqlalchemy.dialects.sqlite.pysqlite\n"
        "os.chdir(sys.argv[1])\n"
        "os.setuid(65534)\n"
        "async def main():\n"
        "    async with open_store(State(), serves=sys.argv[2] == 'True'): pass\n"
        "try: asyncio.run(main())\n"
        "except StoreUnavailable as error: print(error)\n"
    )
    # Not in tmp_path, because other users cannot enter the folders above it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(mode_of_folder)
        (folder / file_name).touch()
        (folder / file_name).chmod(mode)
        command = [sys.executable, "-c", script, name, str(serves)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.replace(name, "FOLDER") or result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become a user without rights")
def test_folder_without_write_permission_is_named() -> None:
    message = open_store_as_user_without_rights("gateway.db", 0o666, 0o755, serves=False)
    assert "directory FOLDER cannot be written" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become a user without rights")
def test_lock_file_without_permission_is_named_with_remedy() -> None:
    """As after a gateway that root started in the folder of another user."""
    message = open_store_as_user_without_rights("gateway.db.lock", 0o600, 0o777, serves=True)
    assert "lock file gateway.db.lock cannot be opened (Permission denied)" in message
    assert "make the gateway's user the owner of the file" in message


@pytest.mark.parametrize("address", ["127.0.0.1:1/db", "127.0.0.1:5432/no_such_database"])
async def test_unusable_server_is_named_without_password(
    address: str, tmp_path: Path, database: str
) -> None:
    create_key_file(tmp_path / "k")
    url = f"postgresql://postgres:hunter2@{address}?application_name=hunter3"
    message = await open_and_describe_failure(State(url=url, encryption_key_file=tmp_path / "k"))
    assert address in message
    assert "hunter" not in message


async def test_missing_database_is_reported(postgres: State) -> None:
    failure_text = await open_and_describe_failure(
        postgres.model_copy(update={"url": f"{postgres.url}_nobody_made"})
    )
    assert "does not exist" in failure_text
    assert "create that database" in failure_text


SHUTDOWN_FIELDS = (
    b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
)
SHUTDOWN_MESSAGE = b"E" + (len(SHUTDOWN_FIELDS) + 4).to_bytes(4, "big") + SHUTDOWN_FIELDS
"""The message that PostgreSQL sends on every connection at shutdown, before it closes it."""


async def test_terminated_server_session_is_unavailable_and_recovers(
    postgres: State,
) -> None:
    """The driver raises a special error for a statement on such a connection."""
    server_url = make_url(postgres.url)
    async with open_tcp_proxy(server_url.host or "127.0.0.1", server_url.port or 5432) as proxy:
        url = server_url.set(host="127.0.0.1", port=proxy.port).render_as_string(
            hide_password=False
        )
        async with open_store(postgres.model_copy(update={"url": url})) as store:
            object_states = ObjectStateStore(store)

            async def load_state() -> None:
                assert await object_states.load(ACME, "batch", "B-1") == {"n": 1}

            async def save_state() -> None:
                await compare_and_set(object_states, ACME, "batch", "B-1", {"n": 1})

            async def ping() -> None:
                assert await fetch(store, text("SELECT 1")) == [(1,)]

            for request in (save_state, load_state, ping):
                await request()
            for request, max_failures in ((save_state, 0), (load_state, 1), (ping, 1)):
                await proxy.respond_with(SHUTDOWN_MESSAGE)
                await asyncio.sleep(
                    0.1
                )  # the message usually arrives before the request; both orders are valid
                assert await count_unavailable_attempts(request) <= max_failures


async def count_unavailable_attempts(attempt: Callable[[], Awaitable[None]]) -> int:
    """Count the attempts that fail as unavailable before one succeeds; other errors are raised."""
    times = 0
    while True:
        try:
            await attempt()
        except StoreUnavailable:
            times += 1
        else:
            return times


async def test_file_locked_by_another_process_is_unavailable(
    sqlite: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.sqlite_database.BUSY_SECONDS", 1)
    async with open_store(sqlite) as store:
        other_connection = sqlite3.connect(extract_sqlite_path(sqlite), isolation_level=None)
        try:
            other_connection.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreUnavailable, match="locked"):
                await save_legacy_ids(store, Tenant("acme", "live"), {"R-1": "R-2"})
        finally:
            other_connection.close()
        await save_legacy_ids(store, Tenant("acme", "live"), {"R-1": "R-2"})


async def test_second_gateway_on_one_sqlite_file_is_refused(tmp_path: Path) -> None:
    state = State(url=f"sqlite:///{tmp_path}/a.db", encryption_key_file=tmp_path / "a.key")
    async with open_store(state, serves=True):
        with pytest.raises(StoreUnavailable, match="another gateway serves"):
            async with open_store(state, serves=True):
                pass
        async with open_store(state):
            pass  # a command only looks
    async with open_store(state, serves=True):
        pass


async def test_command_sees_whether_a_gateway_runs_and_creates_no_lock_file(tmp_path: Path) -> None:
    state = State(url=f"sqlite:///{tmp_path}/a.db", encryption_key_file=tmp_path / "a.key")
    async with open_store(state) as store:
        row = {"id": "one", "renewed_at": store.clock()}
        await execute(store, instances.insert().values(row))
        assert await store.list_live_instances() == set()
        assert not (tmp_path / "a.db.lock").exists(), "a gateway of another user could not open it"
        async with open_store(state, serves=True):
            assert await store.list_live_instances() == {"one"}
        assert await store.list_live_instances() == set()


async def test_cancelled_caller_leaves_no_lock(tmp_path: Path) -> None:
    """A cancelled read ends in its thread, without waiting for garbage collection."""
    file = tmp_path / "gateway.db"
    state = State(url=f"sqlite:///{file}", encryption_key_file=tmp_path / "gateway.key")
    query = text("SELECT name FROM sqlite_master")

    async def hold_read(store: Store) -> None:
        while True:
            await fetch(store, query)

    async with open_store(state) as store:
        for number in range(100):
            read_task = asyncio.create_task(hold_read(store))
            await asyncio.sleep(number / 10_000)
            gc.disable()
            try:
                read_task.cancel()
                await asyncio.gather(read_task, return_exceptions=True)
                with closing(
                    sqlite3.connect(file, timeout=2, isolation_level=None)
                ) as other_connection:
                    other_connection.execute("BEGIN EXCLUSIVE")
            finally:
                gc.enable()


async def test_order_of_the_keys_is_that_of_their_use_whatever_the_clock_says(state: State) -> None:
    """Retries and alias ids are recognized by the one that was used first."""
    if not state.encryption_key_file.exists():
        create_key_file(state.encryption_key_file)
    add_encryption_key(state.encryption_key_file)
    oldest_keys = []
    for hours in (24, 1, 0):
        now = datetime.now(UTC) + timedelta(hours=hours)
        async with open_store(state, clock=lambda now=now: now) as store:
            oldest_keys.append(store.encryption.oldest)
        lines = state.encryption_key_file.read_text().splitlines(keepends=True)
        state.encryption_key_file.write_text("".join(reversed(lines)))
        add_encryption_key(state.encryption_key_file)
    assert len(set(oldest_keys)) == 1
