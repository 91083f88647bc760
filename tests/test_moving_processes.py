"""A migration with the real commands: a simulator with both interfaces, a gateway, and a kill."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.simulator import DEMO_KEY, Fault, Service, start
from tests.operating import eventually
from tests.processes import COMMAND, SECONDS, command, configuration, environment, serving

KEY = {
    "merchant": DEMO_KEY.merchant,
    "environment": DEMO_KEY.environment,
    "name": "shop",
    "api_key": DEMO_KEY.api_key,
    "access_key": DEMO_KEY.access_key,
    "secret_key": DEMO_KEY.secret_key,
}


async def run(folder: Path, *words: str, stdin: str = "") -> str:
    done = await asyncio.to_thread(command, *words, folder=folder, stdin=stdin, seconds=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def prepare(folder: Path, base_url: str, legacy_url: str) -> None:
    text = configuration(base_url).replace(
        f'base_url = "{base_url}"', f'base_url = "{base_url}"\nlegacy_base_url = "{legacy_url}"'
    )
    (folder / "gateway.toml").write_text(text)
    await run(folder, "keys", "import", "-", stdin=json.dumps(KEY))


@asynccontextmanager
async def simulating() -> AsyncIterator[tuple[str, str]]:
    """Runs the simulator; yields the URLs of both interfaces."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("simulate", "--port", "0", "--legacy-port", "0"),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        found: list[str] = []
        async with asyncio.timeout(3 * SECONDS):
            while len(found) < 2:
                line = (await process.stdout.readline()).decode()
                assert line, "it ended"
                found += re.findall(r"http://127\.0\.0\.1:\d+", line)
        yield found[0], found[1]
    finally:
        process.terminate()
        await process.communicate()


async def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-API-Key": DEMO_KEY.api_key}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, json=body, headers=headers) as got,
    ):
        return got.status, await got.json()


async def test_a_simulator_with_two_faces_is_moved_over(tmp_path: Path) -> None:
    async with simulating() as (current, legacy):
        await prepare(tmp_path, current, legacy)
        async with serving(tmp_path, seconds=30) as gateway:

            async def switched(mode: str, expected: str | None) -> None:
                await run(tmp_path, "modes", "set", "--key", "shop", mode, "--yes")

                async def follows() -> bool:
                    assert (await ask(gateway.url, "GET", "/v1/batches"))[0] == 200
                    last = [one for one in gateway.lines() if one.get("event") == "request"][-1]
                    return bool(last.get("mode") == expected)

                await eventually(follows)

            await switched("forward", "forward")
            _status, made = await ask(gateway.url, "POST", "/v1/batches", {"sourceCurrency": "USD"})
            batch = made["batch"]["id"]
            await switched("translate", None)
            status, shown = await ask(gateway.url, "GET", f"/v1/batches/{batch}")
            assert (status, shown["batch"]["id"]) == (200, batch)
            last = [one for one in gateway.lines() if one.get("operation") == "read_batch"][-1]
            assert last["mode"] == "forward"
            told = await asyncio.to_thread(
                command,
                *("cutover", "import", "--key", "shop", "--move-open-batches", "--json"),
                folder=tmp_path,
                seconds=60,
                LEGACY_API_KEY=DEMO_KEY.api_key,
            )
            assert json.loads(told.stdout)["batches_moved"] == 1
            status, shown = await ask(gateway.url, "GET", f"/v1/batches/{batch}")
            assert (status, shown["batch"]["id"]) == (200, batch)
            last = [one for one in gateway.lines() if one.get("operation") == "read_batch"][-1]
            assert last.get("mode") is None
            assert await gateway.ends() == 0


async def test_a_gateway_that_is_killed_sends_no_write_a_second_time(tmp_path: Path) -> None:
    service = Service()
    simulator = await start(service=service, legacy_port=0)
    assert simulator.legacy is not None
    body = {"sourceCurrency": "USD"}
    try:
        await prepare(tmp_path, simulator.url, simulator.legacy.url)
        await run(tmp_path, "modes", "set", "--key", "shop", "forward", "--yes")
        service.faults.append(Fault("POST", "/v1/batches", face="legacy", answer_delay=5))
        async with serving(tmp_path, seconds=30) as gateway:
            asking = asyncio.create_task(ask(gateway.url, "POST", "/v1/batches", body))

            async def executed() -> bool:
                return len(service.world().batches) == 1

            await eventually(executed)
            gateway.running.kill()
            await gateway.running.wait()
            await asyncio.gather(asking, return_exceptions=True)
        for mode in ("forward", "translate"):
            await run(tmp_path, "modes", "set", "--key", "shop", mode, "--yes")
            async with serving(tmp_path, seconds=30) as gateway:
                assert (await ask(gateway.url, "POST", "/v1/batches", body))[0] == 500
                told = json.loads(await run(tmp_path, "writes", "unsettled", "--json"))
                assert [one["operation"] for one in told["writes"]] == ["forwarded create_batch"]
                assert await gateway.ends() == 0
        assert len(service.world().batches) == 1
    finally:
        await simulator.stop()
