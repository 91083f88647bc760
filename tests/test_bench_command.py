"""The command line of ``python -m tests.bench``, without any measurement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_output_directory_is_created(tmp_path: Path) -> None:
    # Not imported by every process that collects the tests.
    from tests.bench.__main__ import create_folder

    folder = tmp_path / "of" / "today"
    assert create_folder(str(folder)) == folder
    assert folder.is_dir()
    assert create_folder(str(folder)) == folder


def test_output_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--output", str(tmp_path / "taken" / "there")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "taken/there cannot be made (Not a directory)" in result.stderr
