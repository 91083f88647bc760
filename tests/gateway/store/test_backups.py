"""State and key file saved together, and put back."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.config.settings import State
from gateway.storage import Ledger, StoreUnavailable, Tenant, open_store
from gateway.storage.audit_log import acts_of
from gateway.storage.backups import restore, save
from gateway.storage.keyfile import add_key, make_key_file
from gateway.storage.restore_marks import Mark, standing, write_mark
from tests.gateway.store.conftest import administer, nothing_yet
from tests.states import execute

ACME = Tenant("acme", "live")
FACTS = {"description": "for Ada", "n": 1}


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return nothing_yet(tmp_path)


async def used(state: State) -> State:
    """With something sealed in it."""
    async with open_store(state) as store:
        await Ledger(store).record(ACME, "batch", "B-1", FACTS)
    return state


async def recalled(state: State) -> dict[str, object]:
    async with open_store(state) as store:
        return await Ledger(store).recall(ACME, "batch", "B-1")


def empty(state: State, folder: Path) -> State:
    """A place of the same kind with nothing in it."""
    folder.mkdir()
    if state.url.startswith("postgres"):
        administer(state.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return State(url=state.url, encryption_key_file=folder / "gateway.key")
    return nothing_yet(folder)


async def refusal(state: State, path: Path, *, force: bool = False) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await restore(state, path, force=force)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_what_was_saved_is_there_again_in_another_place(state: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    manifest, size = await save(await used(state), path)
    assert (manifest.revision, size) == ("0018", path.stat().st_size)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = await asyncio.to_thread(empty, state, tmp_path / "other")
    restored, aside = await restore(other, path, force=False)
    assert (restored, aside) == (manifest, [])
    assert await recalled(other) == FACTS
    assert stat.S_IMODE(other.encryption_key_file.stat().st_mode) == 0o600


async def test_a_restored_state_waits_for_reconciliation_and_says_who_restored_it(
    state: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save(await used(state), path)
    write_mark(state.mark, Mark(2, 70))
    await restore(state, path, force=True)
    async with open_store(state) as store:
        found = await standing(store)
        assert (found.restored, found.mark.generation) == (True, 2)
        assert [act.what for act in await acts_of(store)] == ["restored a backup"]


async def test_what_is_there_is_replaced_only_when_told_to_and_kept_aside(
    sqlite: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save(await used(sqlite), path)
    async with open_store(sqlite) as store:
        await Ledger(store).record(ACME, "batch", "B-1", {"n": 2})
    assert "is there already" in await refusal(sqlite, path)
    assert (await recalled(sqlite))["n"] == 2
    _manifest, aside = await restore(sqlite, path, force=True)
    assert await recalled(sqlite) == FACTS
    assert [one.name for one in aside] == ["gateway.db.before-restore-1"]
    before = State(url=f"sqlite:///{aside[0]}", encryption_key_file=sqlite.encryption_key_file)
    assert (await recalled(before))["n"] == 2


async def test_what_a_lost_database_left_is_not_played_into_the_restored_one(
    sqlite: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save(await used(sqlite), path)
    (tmp_path / "gateway.db").unlink()
    journal = tmp_path / "gateway.db-journal"
    journal.write_bytes(b"left by a crash")
    await restore(sqlite, path, force=True)
    assert not journal.exists()
    assert await recalled(sqlite) == FACTS
    assert (tmp_path / "gateway.db-journal.before-restore-1").read_bytes() == b"left by a crash"


async def test_a_database_that_is_there_is_replaced_only_when_told_to(
    postgres: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    await save(await used(postgres), path)
    async with open_store(postgres) as store:
        await Ledger(store).record(ACME, "batch", "B-1", {"n": 2})
    refused = await refusal(postgres, path)
    assert "is there already" in refused
    assert "keeps nothing of what is there" in refused
    await restore(postgres, path, force=True)
    assert await recalled(postgres) == FACTS


async def test_a_database_of_another_version_is_left_alone(postgres: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save(await used(postgres), path)
    async with open_store(postgres) as store:
        await execute(store, text("UPDATE alembic_version SET version_num = '0003'"))
    said = await refusal(postgres, path, force=True)
    assert "has tables of revision 0003, the backup of 0018" in said


async def test_a_key_file_with_more_keys_stays(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save(await used(sqlite), path)
    add_key(sqlite.encryption_key_file)
    both = sqlite.encryption_key_file.read_text()
    _manifest, aside = await restore(sqlite, path, force=True)
    assert sqlite.encryption_key_file.read_text() == both
    assert [one.name for one in aside] == ["gateway.db.before-restore-1"]


async def test_another_key_file_is_put_aside(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save(await used(sqlite), path)
    sqlite.encryption_key_file.unlink()
    make_key_file(sqlite.encryption_key_file)
    other = sqlite.encryption_key_file.read_text()
    _manifest, aside = await restore(sqlite, path, force=True)
    assert aside[0].read_text() == other
    assert stat.S_IMODE(aside[0].stat().st_mode) == 0o600
    assert await recalled(sqlite) == FACTS


async def test_a_backup_is_a_copy_as_of_one_moment_while_others_write(
    sqlite: State, tmp_path: Path
) -> None:
    await used(sqlite)
    async with open_store(sqlite) as store:
        ledger = Ledger(store)

        async def write() -> None:
            for number in range(200):
                await ledger.record(ACME, "batch", "B-1", {"n": number, "description": "x" * 999})

        writing = asyncio.create_task(write())
        for number in range(3):
            await save(sqlite, tmp_path / f"backup-{number}")
        await writing
    for number in range(3):
        other = await asyncio.to_thread(empty, sqlite, tmp_path / f"other-{number}")
        await restore(other, tmp_path / f"backup-{number}", force=False)
        assert (await recalled(other))["description"]


# What is no backup.


async def test_a_backup_that_was_cut_off_restores_nothing(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await save(await used(sqlite), path)
    whole = path.read_bytes()
    for length in (0, 700, len(whole) // 2):
        path.write_bytes(whole[:length])
        assert "is no backup of a gateway" in await refusal(sqlite, path, force=True)
    assert await recalled(sqlite) == FACTS


async def test_an_archive_of_something_else_writes_nowhere(sqlite: State, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    assert "is no backup" in await refusal(sqlite, path)
    assert not (tmp_path.parent / "escaped").exists()
    assert "there is no such file" in await refusal(sqlite, tmp_path / "nothing")


async def test_a_backup_of_another_kind_of_state_is_refused(
    sqlite: State, postgres: State, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    sqlite = State(url=sqlite.url, encryption_key_file=tmp_path / "own.key")
    await save(await used(sqlite), path)
    assert "was made of a sqlite state" in await refusal(postgres, path)


async def test_without_pg_dump_it_says_how_to_save_both(
    postgres: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(postgres)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreUnavailable) as refused:
        await save(postgres, tmp_path / "backup")
    assert "pg_dump --format=custom --file=gateway.dump postgresql://" in str(refused.value)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["gateway.key"]


async def test_a_password_is_in_no_argument_and_in_no_message(
    postgres: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(postgres)
    spy = tmp_path / "bin" / "pg_dump"
    spy.parent.mkdir()
    spy.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\necho "$PGPASSWORD" > {tmp_path}/word\nexit 1\n'
    )
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    url = postgres.url.replace("postgres@", "postgres:hunter2@")
    secret = State(url=url, encryption_key_file=postgres.encryption_key_file)
    with pytest.raises(StoreUnavailable) as refused:
        await save(secret, tmp_path / "backup")
    assert (tmp_path / "word").read_text() == "hunter2\n"
    assert "hunter2" not in (tmp_path / "arguments").read_text() + str(refused.value)
