"""The file format of backups: database and key file together, as each is useless without the other.

A tar file with mode 0600 that contains ``manifest.json``, ``state`` (an SQLite database, or a
pg_dump in custom format) and ``key``.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Literal

from gateway.storage.errors import StoreUnavailable

MANIFEST_NAME, STATE_NAME, KEY_NAME = "manifest.json", "state", "key"
FORMAT_VERSION = 1

DatabaseKind = Literal["sqlite", "postgresql"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a backup, whose field names are part of the format.

    ``revision`` is the schema revision, ``undertakings`` the number of the last operation.
    """

    made_at: str
    kind: DatabaseKind
    revision: str
    undertakings: int
    format: int = FORMAT_VERSION


@contextmanager
def open_temporary_folder(path: Path) -> Iterator[Path]:
    """Opens a private temporary directory beside the file, and deletes it afterwards.

    A rename from there is atomic, because both are on one file system.
    """
    try:
        with TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}-") as name:
            yield Path(name)
    except OSError as error:
        raise StoreUnavailable(
            f"{_choose_path_for_error(error, path)} cannot be written or read ({error.strerror})",
            means="nothing was saved or restored",
            do="check that the directory exists, has free space and is writable by this user",
        ) from None


def _choose_path_for_error(error: OSError, path: Path) -> str:
    """Returns the path of an error; the operator's own in place of the temporary directory."""
    name = str(error.filename or path)
    return str(path) if Path(name).name.startswith(f".{path.name}-") else name


def pack(path: Path, manifest: Manifest, state: Path, key: Path, folder: Path) -> int:
    """Writes an archive atomically, with mode 0600; returns its size in bytes. Raises OSError."""
    temporary_file = folder / "archive"
    with os.fdopen(
        os.open(temporary_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
    ) as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            text = json.dumps(asdict(manifest), indent=2).encode()
            archive.addfile(_build_member_header(MANIFEST_NAME, len(text)), io.BytesIO(text))
            for name, source in ((STATE_NAME, state), (KEY_NAME, key)):
                with source.open("rb") as content:
                    size = os.fstat(content.fileno()).st_size
                    archive.addfile(_build_member_header(name, size), content)
        file.flush()
        os.fsync(file.fileno())
    # Only after fsync: after a power failure the name must not stand for half an archive.
    temporary_file.replace(path)
    sync_parent_folder(path)
    return path.stat().st_size


def _build_member_header(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def unpack(path: Path, folder: Path) -> tuple[Manifest, Path, Path]:
    """Extracts an archive into a directory, with mode 0600; raises StoreUnavailable."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            manifest = _read_manifest(archive)
            return (
                manifest,
                _extract_member(archive, STATE_NAME, folder),
                _extract_member(archive, KEY_NAME, folder),
            )
    except FileNotFoundError:
        raise _build_not_a_backup_error(path, "there is no such file") from None
    except (tarfile.TarError, KeyError, ValueError, TypeError, EOFError):
        raise _build_not_a_backup_error(path, "it has another format, or is truncated") from None


def _read_manifest(archive: tarfile.TarFile) -> Manifest:
    fields = json.loads(_open_member(archive, MANIFEST_NAME).read())
    if fields["format"] != FORMAT_VERSION or fields["kind"] not in ("sqlite", "postgresql"):
        raise ValueError
    return Manifest(**fields)


def _open_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    # Read by name and written to fixed paths: a hostile archive may contain any path.
    content = archive.extractfile(archive.getmember(name))
    if content is None:
        raise ValueError
    return content


def _extract_member(archive: tarfile.TarFile, name: str, folder: Path) -> Path:
    target = folder / name
    with (
        _open_member(archive, name) as content,
        os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file,
    ):
        # In chunks, because a database may be larger than the memory.
        while chunk := content.read(1 << 20):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return target


def _build_not_a_backup_error(path: Path, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} is not a backup of a gateway ({reason})",
        means="nothing was restored",
        do="name a file written by `payout-gateway backup`",
    )


def sync_parent_folder(path: Path) -> None:
    """Makes the rename of a file durable."""
    # Some file systems have no fsync of directories; the rename is all they can do.
    with suppress(OSError):
        descriptor = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
