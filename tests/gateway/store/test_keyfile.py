from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.storage import StoreUnavailable
from gateway.storage.keyfile import add_key, make_key_file, read_key_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.key"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_a_made_file_has_one_key_and_only_its_owner_can_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        make_key_file(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = read_key_file(path)
    assert keys
    assert len(keys.ids) == 1


def test_no_file_is_no_keys(path: Path) -> None:
    assert read_key_file(path) is None


def test_making_never_overwrites(path: Path) -> None:
    make_key_file(path)
    before = path.read_text()
    with pytest.raises(StoreUnavailable):
        make_key_file(path)
    assert path.read_text() == before


@pytest.mark.parametrize("ended", [True, False])
def test_an_added_key_stands_last_and_the_earlier_ones_stay(path: Path, ended: bool) -> None:
    make_key_file(path)
    if not ended:
        write(path, path.read_text().rstrip("\n"))
    before = path.read_text().rstrip("\n")
    add_key(path)
    assert path.read_text().startswith(before + "\n")
    keys = read_key_file(path)
    assert keys
    assert len(keys.ids) == 2
    assert keys.newest == path.read_text().splitlines()[-1].split()[0]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660])
def test_a_file_open_to_others_is_refused_and_it_says_what_to_do(path: Path, mode: int) -> None:
    make_key_file(path)
    path.chmod(mode)
    with pytest.raises(StoreUnavailable, match=f"chmod 600 {path}"):
        read_key_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root's for another")
@pytest.mark.parametrize(("mode", "read"), [(0o640, True), (0o644, False), (0o660, False)])
def test_a_mounted_file_of_roots_may_be_read_by_the_gateways_group(
    path: Path, mode: int, read: bool
) -> None:
    make_key_file(path)
    path.chmod(mode)
    os.chown(path, 0, 65534)
    # A process of its own, because a user cannot be taken off again.
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.storage import StoreUnavailable\n"
        "from gateway.storage.keyfile import read_key_file\n"
        "file = Path(sys.argv[1]); os.chdir(file.parent)\n"
        "os.chmod('.', 0o755)\n"
        "os.setgroups([65534]); os.seteuid(65534)\n"
        "try: read_key_file(Path(file.name))\n"
        "except StoreUnavailable as error: print('refused', error)\n"
        "else: print('read')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("read" if read else "refused"), done.stdout


GOOD = "A" * 43 + "="


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 is empty"),
        ("\n\n", "line 1 is empty"),
        ("one\n", "line 1 is not"),
        (f"one {GOOD}\ntwo AAAA\n", "line 2 is not"),
        (f"one {GOOD}\none {GOOD}\n", "line 2 has the id"),
        (f"o:ne {GOOD}\n", "line 1 is not"),
        ("one \xff\n", "line 1 is not"),
    ],
)
def test_a_damaged_file_is_refused_by_line_and_never_quoted(
    path: Path, text: str, says: str
) -> None:
    write(path, text)
    with pytest.raises(StoreUnavailable, match=says) as refused:
        read_key_file(path)
    assert "AAAA" not in str(refused.value)


def test_a_file_that_cannot_be_made_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"state\.encryption_key_file"):
        make_key_file(tmp_path / "nowhere" / "gateway.key")
