"""Runs a gateway process with one key in front of the simulator, for raw requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import Process, build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY
from tests.simulator import Service, Simulator, start_simulator


@dataclass(slots=True)
class GatewayAndService:
    gateway: Process
    simulator: Simulator


@asynccontextmanager
async def open_gateway_process(folder: Path, body_bytes: int) -> AsyncIterator[GatewayAndService]:
    """``body_bytes`` is the largest body that it accepts."""
    simulator = await start_simulator(service=Service())
    text = build_configuration(simulator.url, f"[limits]\nbody_bytes = {body_bytes}")
    (folder / "gateway.toml").write_text(text)
    import_result = run_installed_command(
        "keys", "import", "-", folder=folder, stdin=json.dumps(KEY)
    )
    assert import_result.returncode == 0, import_result.stderr
    async with run_serve(folder) as gateway:
        yield GatewayAndService(gateway, simulator)
    await simulator.stop()
