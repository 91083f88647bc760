"""Backups: the database and the key file, saved and restored together."""

from __future__ import annotations

import asyncio
import io
import stat
import tarfile
from pathlib import Path

import pytest

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, StoreUnavailable, Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.backups import mark_as_restored, restore_backup, save_backup
from gateway.storage.key_file import add_encryption_key, create_key_file
from gateway.storage.restore_detection import (
    HighWaterMark,
    load_restore_state,
    write_high_water_mark_if_greater,
)
from tests.gateway.storage.conftest import build_empty_sqlite_state
from tests.state import compare_and_set

ACME = Tenant("acme", "live")
FACTS = {"description": "for Ada", "n": 1}


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return build_empty_sqlite_state(tmp_path)


async def fill_state(state: State) -> State:
    """Write a key and object states, so that the state contains encrypted values."""
    async with open_store(state) as store:
        await compare_and_set(ObjectStateStore(store), ACME, "batch", "B-1", FACTS)
    return state


async def load_stored_facts(state: State) -> dict[str, object]:
    async with open_store(state) as store:
        return await ObjectStateStore(store).load(ACME, "batch", "B-1")


def build_empty_state(folder: Path) -> State:
    folder.mkdir()
    return build_empty_sqlite_state(folder)


async def restore_refused(state: State, path: Path, *, force: bool = False) -> str:
    with pytest.raises(StoreUnavailable) as error:
        await restore_backup(state, path, force=force)
    assert "\n" not in str(error.value)
    return str(error.value)


async def test_restored_state_awaits_reconciliation_and_names_its_restorer(
    state: State, tmp_path: Path
) -> None:
    """A database that its own tools restored is marked by the command without a file."""
    await fill_state(state)
    write_high_water_mark_if_greater(state.restore_mark_path, HighWaterMark(2, 70))
    if state.is_sqlite:
        await save_backup(state, tmp_path / "backup")
        await restore_backup(state, tmp_path / "backup", force=True)
    else:
        with pytest.raises(StoreUnavailable, match="pg_dump"):
            await save_backup(state, tmp_path / "backup")
        await mark_as_restored(state)
    async with open_store(state) as store:
        state_mark = await load_restore_state(store)
        assert (state_mark.is_restored, state_mark.mark.generation) == (True, 2)
        assert [event.action for event in await list_audit_events(store)] == ["restored a backup"]


async def test_existing_state_is_replaced_only_with_force_and_kept(
    sqlite: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save_backup(await fill_state(sqlite), path)
    async with open_store(sqlite) as store:
        await compare_and_set(ObjectStateStore(store), ACME, "batch", "B-1", {"n": 2})
    assert "exists already" in await restore_refused(sqlite, path)
    assert (await load_stored_facts(sqlite))["n"] == 2
    renamed_files = await restore_backup(sqlite, path, force=True)
    assert await load_stored_facts(sqlite) == FACTS
    assert [renamed_file.name for renamed_file in renamed_files] == ["gateway.db.before-restore-1"]
    old_state = State(
        url=f"sqlite:///{renamed_files[0]}", encryption_key_file=sqlite.encryption_key_file
    )
    assert (await load_stored_facts(old_state))["n"] == 2


async def test_journal_of_lost_database_is_not_replayed_into_restored_one(
    sqlite: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save_backup(await fill_state(sqlite), path)
    (tmp_path / "gateway.db").unlink()
    journal = tmp_path / "gateway.db-journal"
    journal.write_bytes(b"left by a crash")
    await restore_backup(sqlite, path, force=True)
    assert not journal.exists()
    assert await load_stored_facts(sqlite) == FACTS
    assert (tmp_path / "gateway.db-journal.before-restore-1").read_bytes() == b"left by a crash"


async def test_key_file_with_more_keys_is_kept(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save_backup(await fill_state(sqlite), path)
    add_encryption_key(sqlite.encryption_key_file)
    two_keys_text = sqlite.encryption_key_file.read_text()
    renamed_files = await restore_backup(sqlite, path, force=True)
    assert sqlite.encryption_key_file.read_text() == two_keys_text
    assert [renamed_file.name for renamed_file in renamed_files] == ["gateway.db.before-restore-1"]


async def test_different_key_file_is_renamed(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save_backup(await fill_state(sqlite), path)
    sqlite.encryption_key_file.unlink()
    create_key_file(sqlite.encryption_key_file)
    other_key_text = sqlite.encryption_key_file.read_text()
    renamed_files = await restore_backup(sqlite, path, force=True)
    assert renamed_files[-1].read_text() == other_key_text
    assert stat.S_IMODE(renamed_files[-1].stat().st_mode) == 0o600
    assert await load_stored_facts(sqlite) == FACTS


async def test_backup_is_consistent_during_writes(sqlite: State, tmp_path: Path) -> None:
    await fill_state(sqlite)
    async with open_store(sqlite) as store:
        object_states = ObjectStateStore(store)

        async def write() -> None:
            for number in range(200):
                await compare_and_set(
                    object_states, ACME, "batch", "B-1", {"n": number, "description": "x" * 999}
                )

        write_task = asyncio.create_task(write())
        for number in range(3):
            await save_backup(sqlite, tmp_path / f"backup-{number}")
        await write_task
    for number in range(3):
        other_state = await asyncio.to_thread(build_empty_state, tmp_path / f"other-{number}")
        await restore_backup(other_state, tmp_path / f"backup-{number}", force=False)
        assert (await load_stored_facts(other_state))["description"]


# Invalid backups.


async def test_truncated_backup_restores_nothing(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save_backup(await fill_state(sqlite), path)
    complete_backup = path.read_bytes()
    for length in (0, 700, len(complete_backup) // 2):
        path.write_bytes(complete_backup[:length])
        assert "is not a backup of a gateway" in await restore_refused(sqlite, path, force=True)
    assert await load_stored_facts(sqlite) == FACTS


async def test_foreign_archive_is_refused_and_writes_nothing(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with tarfile.open(path, "w") as archive:
        outside_member = tarfile.TarInfo("../../escaped")
        outside_member.size = 1
        archive.addfile(outside_member, io.BytesIO(b"x"))
    assert "is not a backup" in await restore_refused(sqlite, path)
    assert not (tmp_path.parent / "escaped").exists()
    assert "there is no such file" in await restore_refused(sqlite, tmp_path / "nothing")
