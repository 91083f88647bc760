from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.storage import StoreUnavailable
from gateway.storage.key_file import add_key, create_key_file, read_key_file


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.key"


def write_key_file(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_created_file_has_one_key_and_is_readable_by_owner_only(key_path: Path) -> None:
    before = os.umask(0)
    try:
        create_key_file(key_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    keys = read_key_file(key_path)
    assert keys
    assert len(keys.ids) == 1


def test_missing_file_has_no_keys(key_path: Path) -> None:
    assert read_key_file(key_path) is None


def test_creation_never_overwrites(key_path: Path) -> None:
    create_key_file(key_path)
    before = key_path.read_text()
    with pytest.raises(StoreUnavailable):
        create_key_file(key_path)
    assert key_path.read_text() == before


@pytest.mark.parametrize("ended", [True, False])
def test_added_key_is_last_and_earlier_keys_remain(key_path: Path, ended: bool) -> None:
    create_key_file(key_path)
    if not ended:
        write_key_file(key_path, key_path.read_text().rstrip("\n"))
    before = key_path.read_text().rstrip("\n")
    add_key(key_path)
    assert key_path.read_text().startswith(before + "\n")
    keys = read_key_file(key_path)
    assert keys
    assert len(keys.ids) == 2
    assert keys.newest_key_id == key_path.read_text().splitlines()[-1].split()[0]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660])
def test_file_open_to_others_is_refused_with_advice(key_path: Path, mode: int) -> None:
    create_key_file(key_path)
    key_path.chmod(mode)
    with pytest.raises(StoreUnavailable, match=f"chmod 600 {key_path}"):
        read_key_file(key_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root's for another")
@pytest.mark.parametrize(("mode", "read"), [(0o640, True), (0o644, False), (0o660, False)])
def test_mounted_file_of_root_may_be_readable_by_group(
    key_path: Path, mode: int, read: bool
) -> None:
    create_key_file(key_path)
    key_path.chmod(mode)
    os.chown(key_path, 0, 65534)
    # A process of its own, because a user cannot be taken off again.
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.storage import StoreUnavailable\n"
        "from gateway.storage.key_file import read_key_file\n"
        "file = Path(sys.argv[1]); os.chdir(file.parent)\n"
        "os.chmod('.', 0o755)\n"
        "os.setgroups([65534]); os.seteuid(65534)\n"
        "try: read_key_file(Path(file.name))\n"
        "except StoreUnavailable as error: print('refused', error)\n"
        "else: print('read')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(key_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("read" if read else "refused"), result.stdout


VALID_KEY_TEXT = "A" * 43 + "="


@pytest.mark.parametrize(
    ("text", "says"),
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
    key_path: Path, text: str, says: str
) -> None:
    write_key_file(key_path, text)
    with pytest.raises(StoreUnavailable, match=says) as refused:
        read_key_file(key_path)
    assert "AAAA" not in str(refused.value)


def test_uncreatable_file_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"state\.encryption_key_file"):
        create_key_file(tmp_path / "nowhere" / "gateway.key")
