"""The limit of open files: raised if possible, otherwise the connection limit adapts."""

from __future__ import annotations

import subprocess
import sys

LIMITS = [(1024, 1024, 500, 1024), (256, 1024, 500, 728), (256, 600, 372, 600), (128, 128, 32, 128)]
"""Soft and hard limits, the connections that are then allowed of 500, and the soft limit that is set.

In this order, because a hard limit cannot be raised.
"""

LIMIT_SCRIPT = f"""
import resource
from gateway.admission.load.connections import raise_file_limit_and_cap_connections
for soft, hard, *_ in {LIMITS}:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(raise_file_limit_and_cap_connections(500, 100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_process_raises_soft_limit_and_adapts_to_hard_limit() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMIT_SCRIPT], capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    # A warning comes before the limits that are too low.
    results = [index for index, line in enumerate(lines) if line.replace(" ", "").isdecimal()]
    assert [lines[index] for index in results] == [
        f"{connections} {may_open}" for _soft, _hard, connections, may_open in LIMITS
    ]
    assert ["open_file_limit_too_low" in lines[index - 1] for index in results] == [
        connections < 500 for _soft, _hard, connections, _may_open in LIMITS
    ]
