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

from tests.operator_commands import wait_until_async
from tests.processes import (
    SECONDS,
    build_command,
    build_configuration,
    build_environment,
    run_installed_command,
    run_serve,
)
from tests.simulator import DEMO_CREDENTIALS, Fault, Service, start_simulator
from tests.sockets import wait_until

KEY = {
    "merchant": DEMO_CREDENTIALS.merchant,
    "environment": DEMO_CREDENTIALS.environment,
    "name": "shop",
    "api_key": DEMO_CREDENTIALS.api_key,
    "access_key": DEMO_CREDENTIALS.access_key,
    "secret_key": DEMO_CREDENTIALS.secret_key,
}


async def run_successfully(folder: Path, *arguments: str, stdin: str = "") -> str:
    result = await asyncio.to_thread(
        run_installed_command, *arguments, folder=folder, stdin=stdin, seconds=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


async def configure_gateway(folder: Path, base_url: str, legacy_url: str) -> None:
    text = build_configuration(base_url).replace(
        f'base_url = "{base_url}"', f'base_url = "{base_url}"\nlegacy_base_url = "{legacy_url}"'
    )
    (folder / "gateway.toml").write_text(text)
    await run_successfully(folder, "keys", "import", "-", stdin=json.dumps(KEY))


@asynccontextmanager
async def run_simulator() -> AsyncIterator[tuple[str, str]]:
    """Runs the simulator; yields the URLs of both interfaces."""
    process = await asyncio.create_subprocess_exec(
        *build_command(),
        *("simulate", "--port", "0", "--legacy-port", "0"),
        env=build_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        urls: list[str] = []
        async with asyncio.timeout(3 * SECONDS):
            while len(urls) < 2:
                line = (await process.stdout.readline()).decode()
                assert line, "it ended"
                urls += re.findall(r"http://127\.0\.0\.1:\d+", line)
        yield urls[0], urls[1]
    finally:
        process.terminate()
        await process.communicate()


async def request_gateway(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-API-Key": DEMO_CREDENTIALS.api_key}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_key_is_migrated_with_the_real_commands(tmp_path: Path) -> None:
    async with run_simulator() as (current, legacy):
        await configure_gateway(tmp_path, current, legacy)
        async with run_serve(tmp_path, seconds=30) as gateway:

            def list_request_lines() -> list[dict[str, Any]]:
                return [line for line in gateway.parse_log() if line.get("event") == "request"]

            async def load_mode_of_read(target: str) -> str | None:
                """Returns the mode in the line of a read, which is written after its response."""
                line_count = len(list_request_lines())
                assert (await request_gateway(gateway.url, "GET", target))[0] == 200
                await wait_until(lambda: len(list_request_lines()) > line_count)
                return list_request_lines()[-1].get("mode")

            async def switch_mode(mode: str, expected_line: str | None) -> None:
                await run_successfully(tmp_path, "modes", "set", "--key", "shop", mode, "--yes")

                async def has_switched() -> bool:
                    return await load_mode_of_read("/v1/batches") == expected_line

                await wait_until_async(has_switched)

            await switch_mode("forward", "forward")
            _status, create_body = await request_gateway(
                gateway.url, "POST", "/v1/batches", {"sourceCurrency": "USD"}
            )
            batch = create_body["batch"]["id"]
            await switch_mode("translate", None)
            status, batch_body = await request_gateway(gateway.url, "GET", f"/v1/batches/{batch}")
            assert (status, batch_body["batch"]["id"]) == (200, batch)
            assert await load_mode_of_read(f"/v1/batches/{batch}") == "forward"
            output = await asyncio.to_thread(
                run_installed_command,
                *("cutover", "import", "--key", "shop", "--move-open-batches", "--json"),
                folder=tmp_path,
                seconds=60,
                LEGACY_API_KEY=DEMO_CREDENTIALS.api_key,
            )
            assert json.loads(output.stdout)["batches_moved"] == 1
            status, batch_body = await request_gateway(gateway.url, "GET", f"/v1/batches/{batch}")
            assert (status, batch_body["batch"]["id"]) == (200, batch)
            assert await load_mode_of_read(f"/v1/batches/{batch}") is None
            assert await gateway.stop() == 0


async def test_killed_gateway_does_not_repeat_a_forwarded_write(tmp_path: Path) -> None:
    service = Service()
    simulator = await start_simulator(service=service, legacy_port=0)
    body = {"sourceCurrency": "USD"}
    try:
        await configure_gateway(tmp_path, simulator.url, simulator.legacy_url)
        await run_successfully(tmp_path, "modes", "set", "--key", "shop", "forward", "--yes")
        service.faults.append(Fault("POST", "/v1/batches", interface="legacy", answer_delay=5))
        async with run_serve(tmp_path, seconds=30) as gateway:
            pending_response = asyncio.create_task(
                request_gateway(gateway.url, "POST", "/v1/batches", body)
            )

            async def is_executed() -> bool:
                return len(service.find_or_create_tenant().batches) == 1

            await wait_until_async(is_executed)
            gateway.process.kill()
            await gateway.process.wait()
            await asyncio.gather(pending_response, return_exceptions=True)
        for mode in ("forward", "translate"):
            await run_successfully(tmp_path, "modes", "set", "--key", "shop", mode, "--yes")
            async with run_serve(tmp_path, seconds=30) as gateway:
                assert (await request_gateway(gateway.url, "POST", "/v1/batches", body))[0] == 500
                report = json.loads(
                    await run_successfully(tmp_path, "writes", "unsettled", "--json")
                )
                assert [write["operation"] for write in report["writes"]] == [
                    "forwarded create_batch"
                ]
                assert await gateway.stop() == 0
        assert len(service.find_or_create_tenant().batches) == 1
    finally:
        await simulator.stop()
