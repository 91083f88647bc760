"""The script that sets up a browser, on a machine without one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "browser.sh"


def run_script(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as on a machine without a browser, apt-get and network."""
    for name in ("sh", "id", "timeout", "false"):
        executable = shutil.which(name)
        assert executable
        (folder / name).symlink_to(executable)
    return subprocess.run(
        [folder / "sh", SCRIPT, "false"],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_missing_browser_is_reported_and_fails_in_ci(tmp_path: Path, ci: str, code: int) -> None:
    result = run_script(tmp_path, CI=ci)
    assert result.returncode == code
    assert "No Chromium could be installed" in result.stderr


def test_configured_browser_is_used_as_it_is(tmp_path: Path) -> None:
    browser = tmp_path / "my-browser"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    result = run_script(tmp_path, CHROMIUM=str(browser))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
