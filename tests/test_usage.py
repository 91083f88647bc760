"""``report usage``: its counts match the log."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service, start
from tests.house import KEY, import_lines, settings_for
from tests.processes import command, configuration, serving
from tests.sockets import heard

ASKED = [
    ("GET", "/v1/recipients", KEY["api_key"]),
    ("GET", "/v1/recipients/R-none", KEY["api_key"]),
    ("GET", "/v1/nowhere", KEY["api_key"]),
    ("GET", "/v1/batches", "nobody"),
    ("GET", "/v1/geography/countries/DE", ""),
    ("POST", "/v1/recipients", KEY["api_key"]),
]


async def ask(port: int, method: str, path: str, key: str) -> None:
    named = f"X-API-Key: {key}\r\n" if key else ""
    length = "Content-Length: 0\r\n" if method == "POST" else ""
    await heard(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{named}{length}\r\n".encode())


@pytest.fixture
async def used(tmp_path: Path) -> list[dict[str, Any]]:
    """Uses a gateway, restarts it and uses it again; returns its log lines."""
    simulator = await start(service=Service())
    (tmp_path / "gateway.toml").write_text(configuration(simulator.url))
    await import_lines(settings_for(tmp_path, simulator.url), [KEY])
    lines: list[dict[str, Any]] = []
    try:
        for rounds in (7, 5):
            async with serving(tmp_path) as gateway:
                asked = [one for one in ASKED for _ in range(rounds)]
                await asyncio.gather(*(ask(gateway.port, *one) for one in asked))
                assert await gateway.ends() == 0
                lines += [one for one in gateway.lines() if one["event"] == "request"]
    finally:
        await simulator.stop()
    assert len(lines) == 12 * len(ASKED)
    return lines


async def test_the_report_agrees_with_the_log_after_a_clean_stop(
    used: list[dict[str, Any]], tmp_path: Path
) -> None:
    told = json.loads(command("report", "usage", "--json", folder=tmp_path).stdout)
    counted = {
        (key["key"], one["operation"]): (one["requests"], one["refused"], one["failed"])
        for key in told["keys"]
        for one in key["operations"]
    }
    logged = Counter((line["key"] or "", line["operation"] or "") for line in used)
    assert {name: requests for name, (requests, _, _) in counted.items()} == dict(logged)
    refused = sum(400 <= line["http.response.status_code"] < 500 for line in used)
    assert sum(refused for _, refused, _ in counted.values()) == refused
    (mine,) = [key for key in told["keys"] if key["key"]]
    assert mine["merchant"] == KEY["merchant"]
    for one in mine["operations"]:
        wrong = (one["refused"] + one["failed"]) / one["requests"]
        assert one["error_rate"] == pytest.approx(wrong, abs=1e-4)
    assert {one["error_rate"] for one in mine["operations"]} > {0.0}
    became = {one["operation"]: one["becomes"] for one in mine["operations"]}
    assert became["list_recipients"] == ["GET /recipients"]
    assert "POST /recipients/:id/accounts" in became["create_recipient"]


async def test_the_report_can_be_read_as_a_table_and_as_csv(
    used: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert used
    rows = list(
        csv.DictReader(io.StringIO(command("report", "usage", "--csv", folder=tmp_path).stdout))
    )
    assert sum(int(row["requests"]) for row in rows) == len(used)
    shown = command("report", "usage", "--merchant", KEY["merchant"], folder=tmp_path).stdout
    assert "list_recipients" in shown
    assert "GET /recipients" in shown
    assert "nobody" not in shown
    assert "without a known API key" not in shown, "each row is of a key"
    whole = command("report", "usage", folder=tmp_path).stdout
    assert "requests without a known API key" in whole
    assert (
        "No requests were counted."
        in command("report", "usage", "--merchant", "another", folder=tmp_path).stdout
    )


async def test_of_a_kill_at_most_a_second_is_lost(tmp_path: Path) -> None:
    simulator = await start(service=Service())
    (tmp_path / "gateway.toml").write_text(configuration(simulator.url))
    await import_lines(settings_for(tmp_path, simulator.url), [KEY])
    try:
        async with serving(tmp_path) as gateway:
            await ask(gateway.port, "GET", "/v1/recipients", KEY["api_key"])
            await asyncio.sleep(2.5)
            await ask(gateway.port, "GET", "/v1/recipients", KEY["api_key"])
            gateway.running.kill()
            await gateway.running.wait()
    finally:
        await simulator.stop()
    told = json.loads(command("report", "usage", "--json", folder=tmp_path).stdout)
    ((one,),) = [key["operations"] for key in told["keys"]]
    assert one["requests"] in (1, 2)
