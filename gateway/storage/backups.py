"""Saves the database with its key file, and restores both.

A restored database is older than the service: nothing is started until `payout-gateway reconcile`
has compared the two. The high-water mark, which detects that, is therefore neither saved nor
restored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

from gateway.config.settings import State
from gateway.storage import engine, postgresql_tools
from gateway.storage.archive import (
    Manifest,
    open_temporary_folder,
    pack,
    sync_parent_folder,
    unpack,
)
from gateway.storage.errors import StoreUnavailable
from gateway.storage.heartbeats import is_database_in_use
from gateway.storage.key_file import read_key_file
from gateway.storage.restore_detection import (
    NO_MARK,
    HighWaterMark,
    load_restore_state,
    read_high_water_mark_file,
    set_restored_flag,
)
from gateway.storage.store import load_schema_revision, open_store

BACKUP_RESTORED = "restored a backup"


async def save_backup(state: State, path: Path) -> tuple[Manifest, int]:
    """Saves database and key file to one archive, also while a gateway runs.

    Returns the manifest and the size in bytes; raises StoreUnavailable.
    """
    address = engine.parse_state_url(state.url)
    sqlite_file = engine.find_sqlite_file(address)
    async with open_store(state, create=False) as store:
        restore_state = await load_restore_state(store)
        manifest = Manifest(
            f"{store.clock():%Y-%m-%dT%H:%M:%SZ}",
            "sqlite" if sqlite_file else "postgresql",
            str(await load_schema_revision(state)),
            restore_state.mark.number,
        )
    with open_temporary_folder(path) as folder:
        copy = folder / "copied"
        if sqlite_file:
            await asyncio.to_thread(_copy_sqlite_database, sqlite_file, copy)
        else:
            await asyncio.to_thread(postgresql_tools.dump_database, address, copy)
        # The key file is saved after the database: a key may be added meanwhile, but none removed.
        size = await asyncio.to_thread(
            pack, path, manifest, copy, state.encryption_key_file, folder
        )
    return manifest, size


def _copy_sqlite_database(source: Path, target: Path) -> None:
    """Copies a database consistently; other writers wait until it is done."""
    # Created here, because SQLite would create it with the permissions of the umask.
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(sqlite3.connect(source)) as from_, closing(sqlite3.connect(target)) as to:
            from_.backup(to)
            check_result = to.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        check_result = str(error)
    if check_result != "ok":
        raise StoreUnavailable(
            f"the database at {source} cannot be copied ({check_result})",
            means="no backup was made",
            do="check that no other process locks it; if it is damaged, restore an earlier backup",
        )


# Restoring


async def restore_backup(state: State, path: Path, *, force: bool) -> tuple[Manifest, list[Path]]:
    """Restores a backup.

    Returns the manifest, and the paths under which replaced files are kept. Raises
    StoreUnavailable, also if a database exists and ``force`` is not set.
    """
    address = engine.parse_state_url(state.url)
    sqlite_file = engine.find_sqlite_file(address)
    with open_temporary_folder(sqlite_file or state.encryption_key_file) as folder:
        manifest, saved_state, key = await asyncio.to_thread(unpack, path, folder)
        kind = "sqlite" if sqlite_file else "postgresql"
        if manifest.kind != kind:
            raise _build_refusal(
                f"{path} is a backup of a {manifest.kind} database, and state.url is {kind}",
                remedy="set state.url to a database of the same kind",
            )
        if sqlite_file:
            replaced_files = await _restore_sqlite_file(
                state, sqlite_file, saved_state, key, force=force
            )
        else:
            replaced_files = await _restore_postgresql_database(
                state, manifest, saved_state, key, force=force
            )
    return manifest, replaced_files


async def _restore_sqlite_file(
    state: State, sqlite_file: Path, saved_state: Path, key: Path, *, force: bool
) -> list[Path]:
    existing_files = [file for file in _list_database_files(sqlite_file) if file.exists()]
    if existing_files:
        await _check_gateway_not_running(state, force=force)
    if (
        existing_files or _is_key_file_missing_backup_keys(state.encryption_key_file, key)
    ) and not force:
        names = ", ".join(map(str, existing_files or [state.encryption_key_file]))
        raise _build_refusal(
            f"{names} exists already", remedy="--force renames it and restores the backup"
        )
    # Opened before it replaces anything: this proves that the key fits, and blocks starts.
    ready = State(url=f"sqlite:///{saved_state}", encryption_key_file=key)
    async with open_store(ready) as store:
        await set_restored_flag(store, _read_high_water_mark(state), BACKUP_RESTORED)
    return [*_replace_key_file(state, key), *_replace_sqlite_file(sqlite_file, saved_state)]


def _replace_sqlite_file(sqlite_file: Path, saved_state: Path) -> list[Path]:
    existing_files = [file for file in _list_database_files(sqlite_file) if file.exists()]
    replaced_files = [_keep_replaced_file(file) for file in existing_files]
    for file in existing_files:
        if file != sqlite_file:  # SQLite would apply a leftover journal to the restored file
            file.unlink()
    saved_state.replace(sqlite_file)
    sync_parent_folder(sqlite_file)
    return replaced_files


async def _restore_postgresql_database(
    state: State, manifest: Manifest, saved_state: Path, key: Path, *, force: bool
) -> list[Path]:
    address = engine.parse_state_url(state.url)
    revision = await load_schema_revision(state)
    if revision and revision != manifest.revision:
        raise _build_refusal(
            f"{engine.format_address(address)} has schema revision {revision}, the backup has "
            f"{manifest.revision}",
            remedy="restore it into an empty database",
        )
    if revision:
        await _check_gateway_not_running(state, force=force)
    if (revision or _is_key_file_missing_backup_keys(state.encryption_key_file, key)) and not force:
        existing = engine.format_address(address) if revision else state.encryption_key_file
        raise _build_refusal(
            f"{existing} exists already",
            remedy="--force replaces it with the backup, and keeps no copy of the database",
        )
    replaced_files = _replace_key_file(state, key)
    await asyncio.to_thread(postgresql_tools.restore_database, address, saved_state)
    async with open_store(state) as store:
        await set_restored_flag(store, _read_high_water_mark(state), BACKUP_RESTORED)
    return replaced_files


def _list_database_files(sqlite_file: Path) -> list[Path]:
    """Lists the files that an SQLite database may consist of."""
    return [sqlite_file, *(Path(f"{sqlite_file}-{suffix}") for suffix in ("journal", "wal", "shm"))]


def _is_key_file_missing_backup_keys(key_file: Path, backup_key_file: Path) -> bool:
    """Whether there is a key file that lacks a key of the backup."""
    if not key_file.exists():
        return False
    return not set(backup_key_file.read_text().splitlines()) <= set(
        key_file.read_text().splitlines()
    )


def _replace_key_file(state: State, backup_key_file: Path) -> list[Path]:
    """Replaces the key file, unless it already has every key of the backup."""
    key_file = state.encryption_key_file
    if key_file.exists() and not _is_key_file_missing_backup_keys(key_file, backup_key_file):
        return []
    replaced_files = [_keep_replaced_file(key_file)] if key_file.exists() else []
    # Copied rather than renamed: it may be on another file system than the backup.
    new_file = key_file.with_name(f".{key_file.name}-restored")
    new_file.unlink(missing_ok=True)
    with os.fdopen(os.open(new_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(backup_key_file.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(key_file)
    sync_parent_folder(key_file)
    read_key_file(key_file)
    return replaced_files


def _keep_replaced_file(path: Path) -> Path:
    """Keeps a file that is about to be replaced under a second, unused name."""
    names = (path.with_name(f"{path.name}.before-restore-{number}") for number in count(1))
    kept_path = next(name for name in names if not name.exists())
    try:
        # A link, so that there is a file under the old name until it is replaced.
        kept_path.hardlink_to(path)
    except OSError:  # the file system has no hard links
        shutil.copy2(path, kept_path)
    return kept_path


def _read_high_water_mark(state: State) -> HighWaterMark:
    try:
        return read_high_water_mark_file(state.restore_mark_path)
    except StoreUnavailable:
        # A lost mark does not prevent a restore, which blocks starts anyway.
        return NO_MARK


async def _check_gateway_not_running(state: State, *, force: bool) -> None:
    """Refuses while a gateway runs, which would continue to write to the replaced file."""
    try:
        async with open_store(state, create=False, as_it_is=True) as store:
            if not await is_database_in_use(store):
                return
    except StoreUnavailable:
        return  # no gateway can run on a database that cannot be read
    hint = "" if force else "; --force then replaces the database with the backup"
    raise _build_refusal("a gateway is using the database", remedy=f"stop it first{hint}")


def _build_refusal(problem: str, *, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(problem, means="nothing was restored", do=remedy)
