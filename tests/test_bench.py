"""The command line of ``python -m tests.bench``, without any measurement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.__main__ import made_folder


def test_where_it_writes_is_made_before_anything_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "of" / "today"
    assert made_folder(str(folder)) == folder
    assert folder.is_dir()
    assert made_folder(str(folder)) == folder


def test_a_folder_that_cannot_be_made_is_a_mistake_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--output", str(tmp_path / "taken" / "there")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "taken/there cannot be made (Not a directory)" in ended.stderr
