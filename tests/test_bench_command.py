"""The command line of ``python -m tests.bench``, without any measurement."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_output_directory_is_created(tmp_path: Path) -> None:
    # Not imported by every process that collects the tests.
    from tests.bench.__main__ import create_folder

    folder = tmp_path / "of" / "today"
    assert create_folder(str(folder)) == folder
    assert folder.is_dir()
    assert create_folder(str(folder)) == folder


def test_output_directory_that_cannot_be_created_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.bench.__main__ import main

    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr("sys.argv", ["bench", "--output", str(tmp_path / "taken" / "there")])
    with pytest.raises(SystemExit, match="2"):
        main()
    output = capsys.readouterr()
    assert "taken/there cannot be made (Not a directory)" in output.err
    assert output.out == ""
