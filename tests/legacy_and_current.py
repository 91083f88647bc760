"""A gateway with both services behind it: the current and the legacy one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarl import URL

from tests.operator_commands import (
    AdjustableClock,
    CommandsBesideGateway,
    log_to_file,
    run_command,
    wait_until_async,
)
from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import DEMO_CREDENTIALS, Fault, Service, ServiceOptions, start_simulator

API_KEY = DEMO_CREDENTIALS.api_key
KEY_NAME = "shop"


@dataclass
class GatewayBetween(CommandsBesideGateway):
    """``current`` and ``legacy`` are the same object if both interfaces share one state."""

    gateway: GatewayUnderTest
    folder: Path
    current: Service
    legacy: Service
    legacy_url: str
    clock: AdjustableClock

    async def run_command(self, *arguments: str, code: int = 0) -> str:
        return (await run_command(self.folder, *arguments, code=code)).output

    async def set_mode(self, mode: str, *groups: str) -> None:
        """Sets the key's mode and waits until the gateway applies it."""
        group_options = [argument for group in groups for argument in ("--group", group)]
        await self.run_command("modes", "set", "--key", KEY_NAME, *group_options, mode, "--yes")
        probe = {"balances": "/v1/profile/balances", "recipients": "/v1/recipients"}
        path = probe.get((groups or ("balances",))[0], "/v1/batches")

        async def has_switched() -> bool:
            count_before = self.count_legacy_calls()
            assert (await self.gateway.request("GET", path)).status == 200
            return (self.count_legacy_calls() > count_before) is (mode == "forward")

        await wait_until_async(has_switched)

    def count_legacy_calls(self, method: str = "*", path: str = "*") -> int:
        return len(self.legacy.list_requests(method, path, interface="legacy"))

    def count_current_calls(self, method: str = "*", path: str = "*") -> int:
        return len(self.current.list_requests(method, path))

    def add_legacy_fault(self, method: str, path: str, **options: Any) -> None:
        self.legacy.faults.append(Fault(method, path, interface="legacy", **options))

    async def request_legacy(self, method: str, path: str, body: Any = None) -> GatewayResponse:
        """The legacy service's own response."""
        data = None if body is None else json.dumps(body).encode()
        url = URL(self.legacy_url + path, encoded=True)
        headers = {"X-API-Key": API_KEY, "Content-Type": "application/json"}
        async with self.gateway.session.request(
            method, url, data=data, headers=headers
        ) as response:
            text = await response.text()
            return GatewayResponse(response.status, response.headers, text, json.loads(text))


@asynccontextmanager
async def open_gateway_between(
    folder: Path,
    *,
    has_two_services: bool = False,
    legacy_url: str | None = None,
    seconds: float = 2,
    sections: Mapping[str, Any] | None = None,
    **service_options: Any,
) -> AsyncIterator[GatewayBetween]:
    """With ``has_two_services`` the two services share no state."""
    current = Service(options=ServiceOptions(**service_options), seed=1)
    legacy = (
        Service(options=ServiceOptions(**service_options), seed=2) if has_two_services else current
    )
    current_simulator = await start_simulator(
        service=current, legacy_port=None if has_two_services else 0
    )
    legacy_simulator = (
        await start_simulator(service=legacy, legacy_port=0)
        if has_two_services
        else current_simulator
    )
    legacy_address, clock = legacy_url or legacy_simulator.legacy_url, AdjustableClock()
    environments = {
        "sandbox": {"base_url": current_simulator.url, "legacy_base_url": legacy_address}
    }
    (folder / "gateway.toml").write_text(
        f'[environments.sandbox]\nbase_url = "{current_simulator.url}"\nlegacy_base_url = "{legacy_address}"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )
    default_sections = {"environments": environments, "upstream": {"timeout_seconds": seconds}}
    try:
        with log_to_file(folder):
            async with open_gateway(
                folder, current_simulator.url, clock, **{**default_sections, **(sections or {})}
            ) as gateway:
                gateway.api_key = await gateway.import_key(api_key=API_KEY, name=KEY_NAME)
                yield GatewayBetween(gateway, folder, current, legacy, legacy_address, clock)
    finally:
        await current_simulator.stop()
        if has_two_services:
            await legacy_simulator.stop()
