"""The complete payout with a restart of the gateway between any two steps: the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings
from gateway.server.app import run_gateway
from gateway.simulator import Fault, Service, Switches, start
from gateway.storage.keyfile import add_key
from tests.house import KEY, Got, House, import_lines, open_house, settings_for
from tests.operating import LOST, no_reading_at_once
from tests.payday import make_batch, make_recipient
from tests.test_payout_run import COMBINATIONS, Run, payout_run


class Restarted:
    """A gateway that is started for each request, and stopped after it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.openings = 0

    async def ask(self, method: str, path: str, body: Any = None) -> Got:
        self.openings += 1
        async with run_gateway(self.settings) as running, aiohttp.ClientSession() as session:
            return await House(running, self.settings, session).ask(method, path, body)


@pytest.mark.parametrize("kind", COMBINATIONS, ids=json.dumps)
async def test_a_payout_run_is_the_same_with_a_restart_between_any_two_steps(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    said: list[list[str]] = []
    for name in ("once", "again"):
        service = Service(switches=Switches(**kind, processing_seconds=1), seed=1)
        simulator = await start(service=service)
        folder = tmp_path / name
        folder.mkdir()
        try:
            if name == "once":
                async with open_house(folder, simulator.url) as house:
                    told = Run(house)
                    await payout_run(told)
            else:
                settings = settings_for(folder, simulator.url)
                await import_lines(settings, [KEY])
                restarted = Restarted(settings)
                told = Run(restarted)  # type: ignore[arg-type]
                await payout_run(told)
                assert restarted.openings > 20
        finally:
            await simulator.stop()
        assert len(service.starts) == 1
        said.append(told.said)
    assert said[0] == said[1]


async def test_a_retry_is_known_again_wherever_the_first_line_of_the_key_file_has_moved(
    tmp_path: Path,
) -> None:
    """The last one encrypts: to have another do so again, its line is moved."""
    service = Service(seed=1)
    simulator = await start(service=service)
    try:
        async with open_house(tmp_path, simulator.url) as house:
            recipient = await make_recipient(house)
            batch = await make_batch(house, recipient, "5.00")
            add_key(house.settings.state.encryption_key_file)
        asked = (
            "POST",
            f"/v1/batches/{batch}/payments",
            {"recipient": {"id": recipient}, "sourceAmount": "7.00"},
        )
        async with open_house(tmp_path, simulator.url) as house:
            service.faults.append(Fault("POST", "/v1/batches/*/payments", **LOST))
            with no_reading_at_once():
                assert (await house.ask(*asked)).status == 500
            file = house.settings.state.encryption_key_file
        file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
        async with open_house(tmp_path, simulator.url) as house:
            assert (await house.ask(*asked)).status == 200
            whole = (await house.ask("GET", f"/v1/batches/{batch}")).body["batch"]
    finally:
        await simulator.stop()
    assert (whole["totalPayments"], service.created["payment"]) == (2, 2)
