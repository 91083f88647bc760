"""Runs a gateway process with one key in front of the simulator, for raw requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.simulator import Service, Simulator, start
from tests.house import KEY
from tests.processes import Process, command, configuration, serving


@dataclass(slots=True)
class Place:
    gateway: Process
    simulator: Simulator


@asynccontextmanager
async def open_place(folder: Path, body_bytes: int) -> AsyncIterator[Place]:
    """``body_bytes`` is the largest body that it accepts."""
    simulator = await start(service=Service())
    text = configuration(simulator.url, f"[limits]\nbody_bytes = {body_bytes}")
    (folder / "gateway.toml").write_text(text)
    imported = command("keys", "import", "-", folder=folder, stdin=json.dumps(KEY))
    assert imported.returncode == 0, imported.stderr
    async with serving(folder) as gateway:
        yield Place(gateway, simulator)
    await simulator.stop()
