"""The script that sets up a browser, on a machine without one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "browser.sh"


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as on a machine without a browser, apt-get and network."""
    for name in ("sh", "id", "timeout", "false"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return subprocess.run(
        [folder / "sh", SCRIPT, "false"],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_where_no_browser_can_be_had_it_is_said_and_ci_fails(
    tmp_path: Path, ci: str, code: int
) -> None:
    done = run(tmp_path, CI=ci)
    assert done.returncode == code
    assert "No Chromium could be installed" in done.stderr


def test_a_browser_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    browser = tmp_path / "my-browser"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    done = run(tmp_path, CHROMIUM=str(browser))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
