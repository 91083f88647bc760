"""Saves an SQLite database with its key file, and restores both.

A restored database is older than the service: nothing is started until `payout-gateway reconcile`
has compared the two. The high-water mark, which detects that, is therefore neither saved nor
restored. PostgreSQL has its own tools; the runbook describes them.
"""

import asyncio
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.config.settings import State
from gateway.storage import engine
from gateway.storage.errors import StoreUnavailable
from gateway.storage.restore_detection import NO_MARK, read_high_water_mark_file, set_restored_flag
from gateway.storage.sqlite_database import is_served
from gateway.storage.sqlite_driver import sqlite3
from gateway.storage.store import open_store

STATE_NAME, KEY_NAME = "state", "key"
"""The members of an archive."""

BACKUP_RESTORED = "restored a backup"


async def save_backup(state: State, path: Path) -> None:
    """Saves database and key file to one archive (tar), also while a gateway runs.

    Raises StoreUnavailable.
    """
    sqlite_file = _require_sqlite_file(state, "no backup was made", "pg_dump")
    async with open_store(state, create=False):
        pass  # a database and key file that fit
    with _open_temporary_folder(path) as folder:
        await asyncio.to_thread(_write_archive, sqlite_file, state.encryption_key_file, folder)
        (folder / "archive").replace(path)
        _sync_folder(path)


async def mark_as_restored(state: State) -> None:
    """Blocks starts on a database that was restored by other means; raises StoreUnavailable."""
    mark = NO_MARK
    # A lost mark does not prevent a restore, which blocks starts anyway.
    with suppress(StoreUnavailable):
        mark = read_high_water_mark_file(state.restore_mark_path)
    async with open_store(state, create=False) as store:
        await set_restored_flag(store, mark, BACKUP_RESTORED)


async def restore_backup(state: State, path: Path, *, force: bool) -> list[Path]:
    """Restores a backup; returns the paths under which replaced files are kept.

    Raises StoreUnavailable, also if a database exists and ``force`` is not set.
    """
    sqlite_file = _require_sqlite_file(state, "nothing was restored", "pg_restore")
    key_file = state.encryption_key_file
    with _open_temporary_folder(sqlite_file) as folder:
        await asyncio.to_thread(_extract_archive, path, folder)
        has_other_key = key_file.exists() and not _read_lines(folder / KEY_NAME) <= _read_lines(
            key_file
        )
        # Of the database: SQLite would apply a leftover journal to the restored file.
        suffixes = ("", "-journal", "-wal", "-shm")
        files = [Path(f"{sqlite_file}{suffix}") for suffix in suffixes]
        existing_files = [file for file in files if file.exists()] + [key_file] * has_other_key
        # A gateway that runs would continue to write to the replaced file.
        if sqlite_file.exists() and is_served(str(sqlite_file)):
            hint = "" if force else "; --force then replaces the database with the backup"
            raise _build_refusal("a gateway is using the database", remedy=f"stop it first{hint}")
        if existing_files and not force:
            raise _build_refusal(
                f"{existing_files[0]} exists already",
                remedy="--force renames it and restores the backup",
            )
        # Opened before it replaces anything: this proves that the key fits, and blocks starts.
        await mark_as_restored(
            State(
                url=f"sqlite:///{folder / STATE_NAME}",
                encryption_key_file=folder / KEY_NAME,
                mark_file=state.restore_mark_path,
            )
        )
        kept_files = [_keep_replaced_file(file) for file in existing_files]
        if not key_file.exists():
            # Not renamed: it may be on another file system than the database.
            shutil.copy2(folder / KEY_NAME, key_file)
            _sync_folder(key_file)
        (folder / STATE_NAME).replace(sqlite_file)
        _sync_folder(sqlite_file)
    return kept_files


def _require_sqlite_file(state: State, means: str, tool: str) -> Path:
    if (sqlite_file := engine.find_sqlite_file(engine.parse_state_url(state.url))) is None:
        remedy = f"use {tool}, as deploy/runbook.md describes under Backup and restore"
        raise StoreUnavailable("the database is in PostgreSQL", means=means, do=remedy)
    return sqlite_file


@contextmanager
def _open_temporary_folder(path: Path) -> Iterator[Path]:
    """Opens a private directory beside the file, from which a rename is atomic."""
    try:
        with TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}-") as name:
            yield Path(name)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written or read ({error.strerror})",
            means="nothing was saved or restored",
            do="check that the directory exists, has free space and is writable by this user",
        ) from None


def _write_archive(sqlite_file: Path, key_file: Path, folder: Path) -> None:
    """Copies the database consistently, while other writers wait, and packs it with the key."""
    copy = folder / STATE_NAME
    # Created here, because SQLite would create it with the permissions of the umask.
    copy.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(sqlite_file)) as source, closing(sqlite3.connect(copy)) as to:
            source.backup(to)
            check_result = to.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        check_result = str(error)
    if check_result != "ok":
        raise StoreUnavailable(
            f"the database at {sqlite_file} cannot be copied ({check_result})",
            means="no backup was made",
            do="free space where the backup is written if that disk is full, and check that no "
            "other process locks the database; if it is damaged, restore an earlier backup",
        )
    descriptor = os.open(folder / "archive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(copy, STATE_NAME)
            # After the database: a key may be added meanwhile, but none removed.
            archive.add(key_file, KEY_NAME)
        file.flush()
        # After a power failure the name must not stand for half an archive.
        os.fsync(file.fileno())


def _extract_archive(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path, mode="r:") as archive:
            for name in (STATE_NAME, KEY_NAME):
                # By name, and only a plain file: a hostile archive may contain anything.
                content = archive.extractfile(name)
                descriptor = os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(content or io.BytesIO(), file)
                    file.flush()
                    os.fsync(file.fileno())
    except (FileNotFoundError, tarfile.TarError, KeyError, EOFError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if is_missing else "it has another format, or is truncated"
        raise _build_refusal(
            f"{path} is not a backup of a gateway ({reason})",
            remedy="name a file written by `payout-gateway backup`",
        ) from None


def _read_lines(key_file: Path) -> set[str]:
    return set(key_file.read_text().splitlines())


def _keep_replaced_file(path: Path) -> Path:
    """Renames a file that is about to be replaced."""
    names = (path.with_name(f"{path.name}.before-restore-{number}") for number in count(1))
    kept_path = next(name for name in names if not name.exists())
    return path.rename(kept_path)


def _build_refusal(problem: str, *, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(problem, means="nothing was restored", do=remedy)


def _sync_folder(path: Path) -> None:
    """Makes the rename of a file durable, if the file system has an fsync of directories."""
    with suppress(OSError):
        descriptor = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
