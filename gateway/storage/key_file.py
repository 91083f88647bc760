"""Reads, creates and extends the key file (``state.encryption_key_file``)."""

import base64
import contextlib
import os
import re
import stat
from pathlib import Path

from gateway.storage.encryption import KEY_BYTES, EncryptionKeys, build_key_line
from gateway.storage.errors import StoreUnavailable

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


def read_key_file(path: Path) -> EncryptionKeys | None:
    """Reads the keys; None if there is no file.

    Raises StoreUnavailable if the file is invalid, or can be read by others than its owner.
    """
    try:
        with path.open("rb") as file:
            _check_permissions(path, os.fstat(file.fileno()))
            text = file.read().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"key file {path} cannot be read ({error.strerror})",
            means="stored secrets cannot be decrypted",
            do="give the gateway's user read permission",
        ) from None
    return EncryptionKeys(_parse_keys(path, text))


def build_missing_key_file_error(path: Path) -> StoreUnavailable:
    return StoreUnavailable(
        f"there is no key file {path}",
        means="stored secrets can be neither encrypted nor decrypted",
        do="restore it if this database was used before; for a new database create it once with "
        "`payout-gateway keys new-encryption-key` and give every instance the same file",
    )


def create_key_file(path: Path) -> None:
    """Creates a file with one new key, readable by its owner only; raises StoreUnavailable."""
    _write_key_file_text(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, build_key_line())


def add_encryption_key(path: Path) -> None:
    """Adds a key, which encrypts new values from the next start on; raises StoreUnavailable."""
    if read_key_file(path) is None:
        raise build_missing_key_file_error(path)
    has_final_newline = path.read_bytes().endswith(b"\n")
    # Appended, never rewritten: a crash must not lose a key.
    _write_key_file_text(
        path, os.O_APPEND | os.O_WRONLY, ("" if has_final_newline else "\n") + build_key_line()
    )


def _write_key_file_text(path: Path, flags: int, text: str) -> None:
    try:
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # without the key no stored secret can be decrypted
    except OSError as error:
        # An empty file looks like a damaged one, and would keep the next attempt from creating it.
        if flags & os.O_EXCL and not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                path.unlink()
        raise StoreUnavailable(
            f"key file {path} cannot be written ({error.strerror})",
            means="there is no key to encrypt secrets with",
            do="create its directory and give the gateway's user write permission, "
            "or set state.encryption_key_file to another file",
        ) from None


def _check_permissions(path: Path, status: os.stat_result) -> None:
    """Raises StoreUnavailable if others than the owner have access.

    A file of root may be group-readable, as orchestrators mount secrets so.
    """
    allowed_mode = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~allowed_mode:
        raise StoreUnavailable(
            f"key file {path} can be read or changed by others (mode {mode:04o})",
            means="anyone who can read it can decrypt every stored secret",
            do=f"run `chmod 600 {path}`, and add a new key if others may have read it",
        )


def _parse_keys(path: Path, text: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        key_id, _, encoded = line.strip().partition(" ")
        try:
            key = base64.b64decode(encoded.strip(), validate=True)
        except ValueError:
            key = b""
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES:
            raise _build_invalid_line_error(path, number, "is not `<key id> <base64 of 32 bytes>`")
        if key_id in keys:
            raise _build_invalid_line_error(path, number, "has the id of an earlier line")
        keys[key_id] = key
    if not keys:
        raise _build_invalid_line_error(path, 1, "is empty")
    return keys


def _build_invalid_line_error(path: Path, number: int, problem: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"key file {path}, line {number} {problem}",
        means="the file was not created by the gateway, or is damaged",
        do="restore it; for a new database delete it and create another with "
        "`payout-gateway keys new-encryption-key`",
    )
