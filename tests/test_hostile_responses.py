"""Service responses and forwarded bodies that cost much more memory or time than their size."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.processes import (
    COMMAND,
    Process,
    build_command,
    build_configuration,
    run_installed_command,
    run_serve,
)
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.signed_requests import RawService, build_response, open_raw_service, respond_with

MEGABYTE = 1 << 20
ITEM_COUNT = 20_000_000
MIN_SERVED = 5
"""Sequential requests of others that are answered while one hostile text is processed."""

HOSTILE_TEXTS = {
    "lists": (b'{"ok":true,"a":[', b"[],", ITEM_COUNT, b"[]]}"),
    "rows": (b'{"ok":true,"payments":[', b"[],", ITEM_COUNT, b"[]]}"),
    "rows of objects": (b'{"ok":true,"payments":[', b"{},", ITEM_COUNT, b"{}]}"),
    "numbers": (b'{"ok":true,"a":[', b"1e1,", ITEM_COUNT // 2, b"1]}"),
    "depth": (b'{"ok":true,"a":', b"[", ITEM_COUNT, b""),
    "commas": (b"", b",", ITEM_COUNT, b""),
}
"""The beginning, an item, how often it is repeated, and the end."""


@dataclass(frozen=True, slots=True)
class GatewayUnderAttack:
    gateway: Process
    service: RawService
    session: aiohttp.ClientSession
    idle_bytes: int
    """The memory of the process before the first attack."""

    async def request(self, method: str, path: str, data: bytes = b"", **headers: str) -> int:
        sent_headers = {"X-API-Key": KEY["api_key"], "Content-Type": "application/json", **headers}
        url = f"{self.gateway.url}/v1{path}"
        async with self.session.request(
            method, url, data=io.BytesIO(data), headers=sent_headers
        ) as response:
            await response.read()
            return response.status

    async def attack(self, method: str, path: str, data: bytes = b"", **headers: str) -> int:
        """Sends a hostile request, and checks that others are served in bounded memory meanwhile."""
        served_count = 0
        hostile_request = asyncio.ensure_future(self.request(method, path, data, **headers))
        while not hostile_request.done():
            assert await self.request("GET", "/nowhere") == 404
            served_count += 1
        status = await hostile_request
        assert served_count >= MIN_SERVED
        assert read_peak_bytes(self.gateway) - self.idle_bytes < 400 * MEGABYTE
        return status


def read_peak_bytes(gateway: Process) -> int:
    """Reads the peak memory of the process."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text("ascii")
    (line,) = [entry for entry in status.splitlines() if entry.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@asynccontextmanager
async def open_gateway_under_attack(
    folder: Path, *, forwards: bool = False, is_measured: bool = True
) -> AsyncIterator[GatewayUnderAttack]:
    async with open_raw_service() as service, aiohttp.ClientSession() as session:
        text = build_configuration(service.url).replace(
            "[state]", f'legacy_base_url = "{service.url}"\n[state]'
        )
        (folder / "gateway.toml").write_text(text)
        await import_api_keys(build_settings(folder, service.url), [KEY])
        if forwards:
            switch = ("modes", "set", "--key", "demo-sandbox", "forward", "--yes")
            result = run_installed_command(*switch, folder=folder)
            assert result.returncode == 0, result.stderr
        # A forked one has another process id.
        command = COMMAND if is_measured else build_command()
        async with run_serve(folder, command=command) as gateway:
            yield GatewayUnderAttack(gateway, service, session, read_peak_bytes(gateway))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def translating_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[GatewayUnderAttack]:
    """For reads; a write in doubt would be looked for in hostile responses of other tests."""
    async with open_gateway_under_attack(tmp_path_factory.mktemp("translating")) as setup:
        yield setup


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_forwarding_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[GatewayUnderAttack]:
    folder = tmp_path_factory.mktemp("forwarding")
    async with open_gateway_under_attack(folder, forwards=True) as setup:
        yield setup


@pytest.fixture
def forwarding_gateway(
    module_forwarding_gateway: GatewayUnderAttack,
) -> Iterator[GatewayUnderAttack]:
    service = module_forwarding_gateway.service
    respond = service.respond
    service.requests.clear()
    yield module_forwarding_gateway
    service.respond = respond


@cache
def compress_hostile_text(kind: str) -> bytes:
    begin, item, count, end = HOSTILE_TEXTS[kind]
    return gzip.compress(begin + item * count + end, 6)


def build_hostile_response(kind: str) -> bytes:
    return build_response(
        200, compress_hostile_text(kind), "Content-Type: application/json", "Content-Encoding: gzip"
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", HOSTILE_TEXTS)
async def test_hostile_response_costs_bounded_memory_and_does_not_delay_others(
    kind: str, translating_gateway: GatewayUnderAttack
) -> None:
    service = translating_gateway.service
    respond, service.respond = service.respond, respond_with(build_hostile_response(kind))
    assert await translating_gateway.attack("GET", "/recipients/R-1") == 500
    service.respond = respond
    # Or the circuit breaker would refuse the next ones.
    assert await translating_gateway.request("GET", "/recipients") == 200


async def test_hostile_response_to_a_write_costs_bounded_memory(tmp_path: Path) -> None:
    async with open_gateway_under_attack(tmp_path) as setup:
        setup.service.respond = respond_with(build_hostile_response("lists"))
        body = b'{"type":"individual","firstName":"A","lastName":"B","email":"a@example.com"}'
        assert await setup.attack("POST", "/recipients", body) == 500


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", HOSTILE_TEXTS)
async def test_hostile_forwarded_body_costs_bounded_memory_and_does_not_delay_others(
    kind: str, forwarding_gateway: GatewayUnderAttack
) -> None:
    data, encoding = compress_hostile_text(kind), {"Content-Encoding": "gzip"}
    assert await forwarding_gateway.attack("POST", "/batches", data, **encoding) == 413
    assert forwarding_gateway.service.requests == []


@pytest.mark.asyncio(loop_scope="module")
async def test_ids_of_a_forwarded_body_are_read_without_delaying_others(
    forwarding_gateway: GatewayUnderAttack,
) -> None:
    data = b'{"ids":[' + b"[]," * 700_000 + b"[]]}"  # just within the memory limit
    assert await forwarding_gateway.attack("DELETE", "/batches", data) == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_hostile_response_to_a_forwarded_write_is_not_parsed(
    forwarding_gateway: GatewayUnderAttack,
) -> None:
    forwarding_gateway.service.respond = respond_with(build_hostile_response("lists"))
    assert await forwarding_gateway.attack("POST", "/batches", b'{"sourceCurrency":"USD"}') == 200


@pytest.mark.parametrize("forwards", [True, False])
async def test_invalid_service_header_does_not_break_the_response(
    tmp_path: Path, *, forwards: bool
) -> None:
    refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slowly."}]}'
    headers = ("Content-Type: application/json", "Retry-After: \x01", "X-Note: \x7f")
    async with open_gateway_under_attack(tmp_path, forwards=forwards, is_measured=False) as setup:
        setup.service.respond = respond_with(build_response(429, refusal, *headers))
        for method, data in (("GET", b""), ("POST", b'{"type":"business","name":"A"}')):
            sent_headers = {"X-API-Key": KEY["api_key"]}
            url = f"{setup.gateway.url}/v1/recipients"
            async with setup.session.request(
                method, url, data=data, headers=sent_headers
            ) as response:
                body = await response.json()
                passed_headers = (
                    response.headers.get("Retry-After", ""),
                    response.headers.get("X-Note"),
                )
            assert response.status in ((500,) if forwards else (429, 406))
            assert body["ok"] is False
            is_in_doubt = forwards and method == "POST"
            # The gateway's own, which every write in doubt gets.
            assert passed_headers == ("2" if is_in_doubt else "", None)
            if is_in_doubt:
                assert "may have been carried out" in body["errors"][0]["message"]


async def test_list_that_counts_rows_but_has_none_is_an_error(tmp_path: Path) -> None:
    async with open_gateway_under_attack(tmp_path, is_measured=False) as setup:
        for records, status in ((3, 500), ("3", 500), (0, 200)):
            meta = {"page": 1, "pages": 1, "records": records}
            body = json.dumps({"ok": True, "meta": meta}).encode()
            setup.service.respond = respond_with(build_response(200, body))
            for path in ("/recipients", "/batches"):
                assert await setup.request("GET", path) == status, (path, records)
