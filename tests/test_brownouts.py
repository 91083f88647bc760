"""Planned interruptions: which requests they refuse, and how they are listed and switched off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.payouts import open_gateway_and_service
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import (
    KEY,
    GatewayResponse,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
)
from tests.simulator import Service, start_simulator
from tests.sockets import RawResponse, exchange, wait_until

FAR_FUTURE = "2999-01-01T00:00Z"


def run_brownout_command(folder: Path, *arguments: str) -> str:
    result = run_installed_command("brownout", *arguments, folder=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


def write_configuration(gateway: GatewayUnderTest, folder: Path) -> None:
    (folder / "gateway.toml").write_text(
        f'[state]\nurl = "{gateway.settings.state.url}"\n'
        f'encryption_key_file = "{gateway.settings.state.encryption_key_file}"\n'
    )


def is_interrupted(response: GatewayResponse) -> bool:
    error = response.body.get("errors", [{}])[0]
    return response.status == 403 and "planned interruption" in error.get("message", "")


async def wait_for_answer(
    gateway: GatewayUnderTest, path: str, *, interrupted: bool
) -> GatewayResponse:
    """Returns the first answer that is or is not interrupted, as requested."""
    for _ in range(400):
        response = await gateway.request("GET", path)
        if is_interrupted(response) is interrupted:
            return response
        await asyncio.sleep(0.05)
    raise AssertionError("it did not change in time")


async def test_brownout_refuses_only_its_operations(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service()) as (gateway, simulator):
        write_configuration(gateway, tmp_path)
        (
            await asyncio.to_thread(
                run_brownout_command,
                tmp_path,
                "schedule",
                "--until",
                FAR_FUTURE,
                "--operation",
                "batches",
            )
        )
        response = await wait_for_answer(gateway, "/v1/batches", interrupted=True)
        assert response.body["errors"][0]["code"] == "not_authorized"
        assert int(response.headers["Retry-After"]) > 1_000_000
        assert "2999-01-01T00:00:00Z" in response.body["errors"][0]["message"]
        # It does not state the outcome of an earlier request that this one may retry.
        assert "This request changed nothing." in response.body["errors"][0]["message"]
        request_count = len(simulator.service.requests)
        assert is_interrupted(
            await gateway.request("POST", "/v1/batches", {"sourceCurrency": "USD"})
        )
        assert len(simulator.service.requests) == request_count
        assert (await gateway.request("GET", "/v1/recipients")).status == 200
        assert (await gateway.request("GET", "/v1/geography/countries/DE")).status == 200


async def test_brownout_is_switched_off_without_restart(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service()) as (gateway, _simulator):
        write_configuration(gateway, tmp_path)
        (await asyncio.to_thread(run_brownout_command, tmp_path, "schedule", "--until", FAR_FUTURE))
        await wait_for_answer(gateway, "/v1/recipients", interrupted=True)
        assert "1 switched off" in (await asyncio.to_thread(run_brownout_command, tmp_path, "off"))
        await wait_for_answer(gateway, "/v1/recipients", interrupted=False)


async def test_dry_run_refuses_nothing_and_lists_affected_keys(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service())
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    other_key = {**KEY, "api_key": "another-api-key", "name": "other"}
    await import_api_keys(
        build_settings(tmp_path, simulator.url), [{**KEY, "name": "shop"}, other_key]
    )
    try:
        async with run_serve(tmp_path) as gateway:
            assert (await request_recipients(gateway.port)).status == 200
            await wait_until(
                lambda: "shop" in run_installed_command("report", "usage", folder=tmp_path).stdout
            )
            output = await asyncio.to_thread(
                run_brownout_command,
                tmp_path,
                "schedule",
                "--dry-run",
                "--until",
                FAR_FUTURE,
                "--key",
                "shop",
            )
            assert "list_recipients" in output
            assert "other" not in output
            assert "no brownouts" in await asyncio.to_thread(run_brownout_command, tmp_path, "list")
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()


async def test_brownout_applies_to_the_named_key_and_refuses_unknown_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    names = ("shop", "till")
    # Long enough that its first eight characters are displayed.
    lines = [{**KEY, "api_key": f"{name}-api-key-{'0' * 20}", "name": name} for name in names]
    await import_api_keys(build_settings(tmp_path, "http://127.0.0.1:9"), lines)
    schedule = ["brownout", "schedule", "--until", FAR_FUTURE]
    for arguments in (["--key", "nobody"], ["--merchant", "nobody"]):
        result = await asyncio.to_thread(
            run_installed_command, *schedule, *arguments, folder=tmp_path
        )
        assert result.returncode == 2
        assert "`payout-gateway keys list`" in result.stderr
    options = ["--key", "till-api", "--operation", "create_batch", "--operation", "balances"]
    result = await asyncio.to_thread(run_installed_command, *schedule, *options, folder=tmp_path)
    assert result.returncode == 0
    operations = "create_batch, read_balances, read_service_balances, read_wallet_balance"
    subject = f"{operations} of {KEY['merchant']}, key till"
    assert f" refuses {subject} from " in result.stdout
    brownout_list = await asyncio.to_thread(run_brownout_command, tmp_path, "list", "--json")
    report = json.loads(brownout_list)["brownouts"]
    assert [entry["key"] for entry in report] == ["till"]


async def request_recipients(port: int, key: str = KEY["api_key"]) -> RawResponse:
    response = await exchange(
        port, f"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode()
    )
    assert response is not None
    return response


def test_invalid_schedule_is_a_one_line_error(tmp_path: Path) -> None:
    for arguments, message in (
        (["--until", "2000-01-01T00:00Z"], "end before it starts"),
        (["--from", "1999-01-01T00:00Z", "--until", "2000-01-01T00:00Z"], "or before now"),
        (["--until", "9999-12-31T23:00-12:00"], "is not a time such as 2026-11-30T09:00Z"),
        (["--until", "2999-01-01T00:00"], "is not a time such as 2026-11-30T09:00Z, with a zone"),
        (["--until", FAR_FUTURE, "--operation", "payday"], "not an operation, nor a group"),
    ):
        result = run_installed_command("brownout", "schedule", *arguments, folder=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
