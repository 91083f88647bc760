"""A log that cannot be written loses lines, but no answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY
from tests.simulator import Service, start_simulator

FULL_DEVICE = Path("/dev/full")


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="no /dev/full on this machine")
async def test_clients_are_answered_while_the_log_disk_is_full(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1))
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    import_process = await asyncio.to_thread(
        run_installed_command, "keys", "import", "-", folder=tmp_path, stdin=json.dumps(KEY)
    )
    assert import_process.returncode == 0, import_process.stderr
    (tmp_path / "stderr").symlink_to(FULL_DEVICE)
    headers = {"X-API-Key": KEY["api_key"]}
    try:
        async with run_serve(tmp_path) as process, aiohttp.ClientSession(process.url) as session:
            for path, status in (("/v1/profile/balances", 200), ("/v1/nothing", 404)) * 3:
                async with session.get(path, headers=headers) as response:
                    assert response.status == status
                    assert "ok" in await response.json()
            assert await process.stop() == 0
    finally:
        await simulator.stop()
