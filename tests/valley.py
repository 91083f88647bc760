"""A gateway with both services behind it: the current and the legacy one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarl import URL

from gateway.simulator import DEMO_KEY, Fault, Service, Switches, start
from tests.house import Got, House, open_house
from tests.operating import Ticks, eventually, logged_apart, says

API_KEY = DEMO_KEY.api_key
NAME = "shop"


@dataclass
class Valley:
    """``current`` and ``legacy`` are the same object if both interfaces share one state."""

    house: House
    folder: Path
    current: Service
    legacy: Service
    legacy_url: str
    ticks: Ticks

    async def says(self, *words: str, code: int = 0) -> str:
        return (await says(self.folder, *words, code=code)).output

    async def told(self, *words: str, code: int = 0) -> Any:
        return json.loads((await says(self.folder, *words, "--json", code=code)).stdout)

    async def switch(self, mode: str, *groups: str) -> None:
        """Sets the key's mode and waits until the gateway applies it."""
        chosen = [word for group in groups for word in ("--group", group)]
        await self.says("modes", "set", "--key", NAME, *chosen, mode, "--yes")
        probe = {"balances": "/v1/profile/balances", "recipients": "/v1/recipients"}
        path = probe.get((groups or ("balances",))[0], "/v1/batches")

        async def follows() -> bool:
            before = self.asked_legacy()
            assert (await self.house.ask("GET", path)).status == 200
            return (self.asked_legacy() > before) is (mode == "forward")

        await eventually(follows)

    def asked_legacy(self, method: str = "*", path: str = "*") -> int:
        return len(self.legacy.calls(method, path, face="legacy"))

    def asked_current(self, method: str = "*", path: str = "*") -> int:
        return len(self.current.calls(method, path))

    def breaks_legacy(self, method: str, path: str, **what: Any) -> None:
        self.legacy.faults.append(Fault(method, path, face="legacy", **what))

    async def directly(self, method: str, path: str, body: Any = None) -> Got:
        """The legacy service's own response."""
        data = None if body is None else json.dumps(body).encode()
        url = URL(self.legacy_url + path, encoded=True)
        headers = {"X-API-Key": API_KEY, "Content-Type": "application/json"}
        async with self.house.session.request(method, url, data=data, headers=headers) as got:
            text = await got.text()
            return Got(got.status, got.headers, text, json.loads(text))


@asynccontextmanager
async def open_valley(
    folder: Path,
    *,
    apart: bool = False,
    legacy_url: str | None = None,
    seconds: float = 2,
    sections: Mapping[str, Any] | None = None,
    **switches: Any,
) -> AsyncIterator[Valley]:
    """With ``apart`` the two services share no state."""
    current = Service(switches=Switches(**switches), seed=1)
    legacy = Service(switches=Switches(**switches), seed=2) if apart else current
    first = await start(service=current, legacy_port=None if apart else 0)
    second = await start(service=legacy, legacy_port=0) if apart else first
    assert second.legacy is not None
    where, ticks = legacy_url or second.legacy.url, Ticks()
    environments = {"sandbox": {"base_url": first.url, "legacy_base_url": where}}
    (folder / "gateway.toml").write_text(
        f'[environments.sandbox]\nbase_url = "{first.url}"\nlegacy_base_url = "{where}"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )
    more = {"environments": environments, "upstream": {"timeout_seconds": seconds}}
    try:
        with logged_apart(folder):
            async with open_house(
                folder, first.url, ticks, **{**more, **(sections or {})}
            ) as house:
                house.api_key = await house.import_key(api_key=API_KEY, name=NAME)
                yield Valley(house, folder, current, legacy, where, ticks)
    finally:
        await first.stop()
        if apart:
            await second.stop()
