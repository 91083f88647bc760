"""Service responses and forwarded bodies that cost much more memory or time than their size."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.house import KEY, import_lines, settings_for
from tests.processes import Process, command, configuration, serving
from tests.signed import Recorder, http, recording, says

MEGABYTE = 1 << 20
MANY = 20_000_000
SERVED = 5
"""Sequential requests of others that are answered while one hostile text is processed."""

TEXTS = {
    "lists": b'{"ok":true,"a":[' + b"[]," * MANY + b"[]]}",
    "rows": b'{"ok":true,"payments":[' + b"[]," * MANY + b"[]]}",
    "rows of objects": b'{"ok":true,"payments":[' + b"{}," * MANY + b"{}]}",
    "numbers": b'{"ok":true,"a":[' + b"1e1," * (MANY // 2) + b"1]}",
    "depth": b'{"ok":true,"a":' + b"[" * MANY,
    "commas": b"," * MANY,
}


@dataclass(frozen=True, slots=True)
class Attacked:
    gateway: Process
    service: Recorder
    session: aiohttp.ClientSession

    @property
    def peak(self) -> int:
        """The peak memory of the process in bytes."""
        status = Path(f"/proc/{self.gateway.running.pid}/status").read_text("ascii")
        (line,) = [one for one in status.splitlines() if one.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    async def ask(self, method: str, path: str, data: bytes = b"", **headers: str) -> int:
        sent = {"X-API-Key": KEY["api_key"], "Content-Type": "application/json", **headers}
        url = f"{self.gateway.url}/v1{path}"
        async with self.session.request(
            method, url, data=io.BytesIO(data), headers=sent
        ) as response:
            await response.read()
            return response.status

    async def attack(self, method: str, path: str, data: bytes = b"", **headers: str) -> int:
        """Sends a hostile request, and checks that others are served in bounded memory meanwhile."""
        before, served = self.peak, 0
        hostile = asyncio.ensure_future(self.ask(method, path, data, **headers))
        while not hostile.done():
            assert await self.ask("GET", "/nowhere") == 404
            served += 1
        status = await hostile
        assert served >= SERVED
        assert self.peak - before < 400 * MEGABYTE
        return status


@asynccontextmanager
async def attacked(folder: Path, *, forwards: bool = False) -> AsyncIterator[Attacked]:
    async with recording() as service, aiohttp.ClientSession() as session:
        text = configuration(service.url).replace(
            "[state]", f'legacy_base_url = "{service.url}"\n[state]'
        )
        (folder / "gateway.toml").write_text(text)
        await import_lines(settings_for(folder, service.url), [KEY])
        if forwards:
            switch = ("modes", "set", "--key", "demo-sandbox", "forward", "--yes")
            done = command(*switch, folder=folder)
            assert done.returncode == 0, done.stderr
        async with serving(folder) as gateway:
            yield Attacked(gateway, service, session)


def packed(text: bytes) -> bytes:
    return gzip.compress(text, 6)


def answered_with(text: bytes) -> bytes:
    return http(200, packed(text), "Content-Type: application/json", "Content-Encoding: gzip")


@pytest.mark.parametrize("kind", TEXTS)
async def test_hostile_response_costs_bounded_memory_and_nobody_else_s_time(
    kind: str, tmp_path: Path
) -> None:
    async with attacked(tmp_path) as here:
        here.service.play = says(answered_with(TEXTS[kind]))
        assert await here.attack("GET", "/recipients/R-1") == 500
        body = b'{"type":"individual","firstName":"A","lastName":"B","email":"a@example.com"}'
        assert await here.attack("POST", "/recipients", body) == 500


@pytest.mark.parametrize("kind", TEXTS)
async def test_hostile_forwarded_body_costs_bounded_memory_and_nobody_else_s_time(
    kind: str, tmp_path: Path
) -> None:
    async with attacked(tmp_path, forwards=True) as here:
        data = packed(TEXTS[kind])
        assert await here.attack("POST", "/batches", data, **{"Content-Encoding": "gzip"}) == 413
        assert here.service.requests == []


async def test_ids_of_a_forwarded_body_are_read_where_they_hold_up_nobody(tmp_path: Path) -> None:
    async with attacked(tmp_path, forwards=True) as here:
        data = b'{"ids":[' + b"[]," * 700_000 + b"[]]}"  # just within the memory limit
        assert await here.attack("DELETE", "/batches", data) == 200


async def test_hostile_response_to_a_forwarded_write_is_not_parsed(tmp_path: Path) -> None:
    async with attacked(tmp_path, forwards=True) as here:
        here.service.play = says(answered_with(TEXTS["lists"]))
        assert await here.attack("POST", "/batches", b'{"sourceCurrency":"USD"}') == 200


@pytest.mark.parametrize("forwards", [True, False])
async def test_header_that_cannot_be_sent_never_breaks_a_response(
    tmp_path: Path, *, forwards: bool
) -> None:
    refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slowly."}]}'
    headers = ("Content-Type: application/json", "Retry-After: \x01", "X-Note: \x7f")
    async with attacked(tmp_path, forwards=forwards) as here:
        here.service.play = says(http(429, refusal, *headers))
        for method, data in (("GET", b""), ("POST", b'{"type":"business","name":"A"}')):
            sent = {"X-API-Key": KEY["api_key"]}
            url = f"{here.gateway.url}/v1/recipients"
            async with here.session.request(method, url, data=data, headers=sent) as response:
                body = await response.json()
                note = response.headers.get("Retry-After", ""), response.headers.get("X-Note")
            assert response.status in ((500,) if forwards else (429, 406))
            assert body["ok"] is False
            assert note == ("", None)
            if forwards and method == "POST":
                assert "may have been carried out" in body["errors"][0]["message"]
