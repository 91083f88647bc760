from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.storage import StoreUnavailable
from gateway.storage.key_file import add_encryption_key, create_key_file, read_key_file


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.key"


def write_key_file(path: Path, text: str, permissions: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(permissions)


@pytest.mark.parametrize("ends_with_newline", [True, False])
def test_added_key_is_last_and_earlier_keys_remain(key_path: Path, ends_with_newline: bool) -> None:
    create_key_file(key_path)
    if not ends_with_newline:
        write_key_file(key_path, key_path.read_text().rstrip("\n"))
    text_before = key_path.read_text().rstrip("\n")
    add_encryption_key(key_path)
    assert key_path.read_text().startswith(text_before + "\n")
    keys = read_key_file(key_path)
    assert keys
    assert len(keys.ids) == 2
    assert keys.newest_key_id == key_path.read_text().splitlines()[-1].split()[0]


@pytest.mark.parametrize("permissions", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660])
def test_file_open_to_others_is_refused_with_advice(key_path: Path, permissions: int) -> None:
    create_key_file(key_path)
    key_path.chmod(permissions)
    with pytest.raises(StoreUnavailable, match=f"chmod 600 {key_path}"):
        read_key_file(key_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root's for another")
def test_mounted_file_of_root_may_be_readable_by_group(tmp_path: Path) -> None:
    permissions = (0o640, 0o644, 0o660)
    for each in permissions:
        create_key_file(tmp_path / f"{each:o}")
        (tmp_path / f"{each:o}").chmod(each)
        os.chown(tmp_path / f"{each:o}", 0, 65534)
    # In its own process, because a change of user cannot be undone.
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.storage import StoreUnavailable\n"
        "from gateway.storage.key_file import read_key_file\n"
        "os.chdir(sys.argv[1]); os.chmod('.', 0o755)\n"
        "os.setgroups([65534]); os.seteuid(65534)\n"
        "for name in sys.argv[2:]:\n"
        "    try: read_key_file(Path(name))\n"
        "    except StoreUnavailable as error: print('refused')\n"
        "    else: print('read')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *(f"{each:o}" for each in permissions)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["read", "refused", "refused"]


VALID_KEY_TEXT = "A" * 43 + "="


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "line 1 is empty"),
        ("\n\n", "line 1 is empty"),
        ("one\n", "line 1 is not"),
        (f"one {VALID_KEY_TEXT}\ntwo AAAA\n", "line 2 is not"),
        (f"one {VALID_KEY_TEXT}\none {VALID_KEY_TEXT}\n", "line 2 has the id"),
        (f"o:ne {VALID_KEY_TEXT}\n", "line 1 is not"),
        ("one \xff\n", "line 1 is not"),
    ],
)
def test_damaged_file_is_refused_by_line_without_quoting_it(
    key_path: Path, text: str, expected_text: str
) -> None:
    write_key_file(key_path, text)
    with pytest.raises(StoreUnavailable, match=expected_text) as error:
        read_key_file(key_path)
    assert "AAAA" not in str(error.value)


def test_uncreatable_file_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"state\.encryption_key_file"):
        create_key_file(tmp_path / "nowhere" / "gateway.key")
