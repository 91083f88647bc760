"""The limit of open files: raised if possible, otherwise the connection limit adapts."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_SCRIPT = """
import resource, sys
from gateway.admission.load.connections import raise_file_limit_and_cap_connections
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_file_limit_and_cap_connections(500, 100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connection_limit", "may_open"),
    [(1024, 1024, 500, 1024), (256, 1024, 500, 728), (256, 600, 372, 600), (128, 128, 32, 128)],
)
def test_process_raises_soft_limit_and_adapts_to_hard_limit(
    soft: int, hard: int, connection_limit: int, may_open: int
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMIT_SCRIPT, str(soft), str(hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == f"{connection_limit} {may_open}"
    assert ("open_file_limit_too_low" in result.stdout + result.stderr) is (connection_limit < 500)
