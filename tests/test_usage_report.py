"""``report usage``: its counts match the log."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.operator.usage import map_operations_to_replacement_calls
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.simulator import Service, start_simulator
from tests.sockets import exchange

USAGE_REQUESTS = [
    ("GET", "/v1/recipients", KEY["api_key"]),
    ("GET", "/v1/recipients/R-none", KEY["api_key"]),
    ("GET", "/v1/nowhere", KEY["api_key"]),
    ("GET", "/v1/batches", "nobody"),
    ("GET", "/v1/geography/countries/DE", ""),
    ("POST", "/v1/recipients", KEY["api_key"]),
]


async def send_request(port: int, method: str, path: str, key: str) -> None:
    key_header = f"X-API-Key: {key}\r\n" if key else ""
    length = "Content-Length: 0\r\n" if method == "POST" else ""
    await exchange(
        port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{key_header}{length}\r\n".encode()
    )


@pytest.fixture
async def run_gateway_and_read_log(tmp_path: Path) -> list[dict[str, Any]]:
    """Uses a gateway, restarts it and uses it again; returns its log lines."""
    simulator = await start_simulator(service=Service())
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
    lines: list[dict[str, Any]] = []
    try:
        for request_count in (7, 5):
            async with run_serve(tmp_path) as gateway:
                requests = [entry for entry in USAGE_REQUESTS for _ in range(request_count)]
                await asyncio.gather(*(send_request(gateway.port, *entry) for entry in requests))
                assert await gateway.stop() == 0
                lines += [line for line in gateway.parse_log() if line["event"] == "request"]
    finally:
        await simulator.stop()
    assert len(lines) == 12 * len(USAGE_REQUESTS)
    return lines


async def test_usage_report_matches_the_log(
    run_gateway_and_read_log: list[dict[str, Any]], tmp_path: Path
) -> None:
    report = json.loads(run_installed_command("report", "usage", "--json", folder=tmp_path).stdout)
    reported_counts = {
        (key["key"], operation["operation"]): (
            operation["requests"],
            operation["refused"],
            operation["failed"],
        )
        for key in report["keys"]
        for operation in key["operations"]
    }
    logged_counts = Counter(
        (line["key"] or "", line["operation"] or "") for line in run_gateway_and_read_log
    )
    assert {name: requests for name, (requests, _, _) in reported_counts.items()} == dict(
        logged_counts
    )
    refused_count = sum(
        400 <= line["http.response.status_code"] < 500 for line in run_gateway_and_read_log
    )
    assert sum(refused_count for _, refused_count, _ in reported_counts.values()) == refused_count
    (key_entry,) = [key for key in report["keys"] if key["key"]]
    assert key_entry["merchant"] == KEY["merchant"]
    for operation in key_entry["operations"]:
        failure_ratio = (operation["refused"] + operation["failed"]) / operation["requests"]
        assert operation["error_rate"] == pytest.approx(failure_ratio, abs=1e-4)
    assert {operation["error_rate"] for operation in key_entry["operations"]} > {0.0}
    replacements = {
        operation["operation"]: operation["becomes"] for operation in key_entry["operations"]
    }
    assert replacements["list_recipients"] == ["GET /recipients"]
    assert "POST /recipients/:id/accounts" in replacements["create_recipient"]
    assert report["since"] is None, "all days were counted"


def test_replacement_calls_are_those_of_a_client_each_once() -> None:
    replacement_calls = map_operations_to_replacement_calls()
    assert all(len(calls) == len(set(calls)) for calls in replacement_calls.values())
    assert "DELETE /recipients/:id" not in replacement_calls["create_recipient"]
    assert replacement_calls["start_batch"] == [
        "GET /batch/:id/summary",
        "POST /batches/:id/start-processing",
    ]


async def test_usage_report_is_printed_as_table(
    run_gateway_and_read_log: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert run_gateway_and_read_log
    output = run_installed_command(
        "report", "usage", "--merchant", KEY["merchant"], folder=tmp_path
    ).stdout
    assert "list_recipients" in output
    assert "GET /recipients" in output
    assert "nobody" not in output
    assert "without a known API key" not in output, "each row is of a key"
    table = run_installed_command("report", "usage", folder=tmp_path).stdout
    assert "requests without a known API key" in table
    (total,) = [line for line in table.splitlines() if line.startswith("total ")]
    assert f"  {len(run_gateway_and_read_log)}  " in total
    unknown = run_installed_command("report", "usage", "--merchant", "another", folder=tmp_path)
    assert unknown.returncode == 2
    assert "no merchant has this name" in unknown.stderr, "not that it has no requests left"


def test_number_of_days_without_a_date_is_refused(tmp_path: Path) -> None:
    result = run_installed_command("report", "usage", "--days", "1000000", folder=tmp_path)
    assert result.returncode == 2
    assert "1000000 is not in the range 1<=x<=36500" in result.stderr


async def test_kill_loses_at_most_a_second_of_usage(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service())
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
    try:
        async with run_serve(tmp_path) as gateway:
            await send_request(gateway.port, "GET", "/v1/recipients", KEY["api_key"])
            await asyncio.sleep(2.5)
            await send_request(gateway.port, "GET", "/v1/recipients", KEY["api_key"])
            gateway.process.kill()
            await gateway.process.wait()
    finally:
        await simulator.stop()
    report = json.loads(run_installed_command("report", "usage", "--json", folder=tmp_path).stdout)
    ((operation,),) = [key["operations"] for key in report["keys"]]
    assert operation["requests"] in (1, 2)
