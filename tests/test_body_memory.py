"""Memory of bodies with very many small entries, compared with the memory that they are charged."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway.payloads import json_codec
from tests.processes import COMMAND, Process, build_configuration, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.simulator import start_simulator

MEGABYTE = 1 << 20
CHARGED_BYTES = 12 * MEGABYTE
"""The approximate charge of each body."""

LIST_FIELDS = {
    ("POST", "/batches", "payments"): ("{}", '{"id":"P-1"}', '{"recipient":{"id":"x"}}', "[]"),
    ("PATCH", "/batches/{batch}", "payments"): ("{}",),
    ("PATCH", "/batches/{batch}", "update_payments"): ("{}", '{"targetAmount":1}'),
    ("PATCH", "/batches/{batch}", "remove_payments"): ('{"id":"P-1"}', "1"),
    ("DELETE", "/batches", "ids"): ("1",),
    ("DELETE", "/recipients", "ids"): ('""', '"R-#"'),
}
"""``#`` is replaced by the number of the entry."""


def build_list_body(name: str, entry: str) -> bytes:
    """Builds a list whose entries are charged ``CHARGED_BYTES``."""
    count = CHARGED_BYTES // json_codec.estimate_memory_bytes(f"{entry},".encode())
    entries = (entry.replace("#", str(number)) for number in range(count))
    return f'{{"{name}":[{",".join(entries)}]}}'.encode()


@dataclass(frozen=True, slots=True)
class MeasuredGateway:
    gateway: Process
    session: aiohttp.ClientSession

    def _read_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.gateway.process.pid}/status").read_text("ascii")
        (line,) = [entry for entry in status.splitlines() if entry.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024

    async def request(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        headers = {"X-API-Key": KEY["api_key"], "Content-Type": "application/json"}
        url = f"{self.gateway.url}/v1{path}"
        async with self.session.request(
            method, url, data=io.BytesIO(data), headers=headers
        ) as response:
            return response.status, await response.read()

    async def measure(self, method: str, path: str, data: bytes) -> tuple[int, int]:
        """Returns the status of a request, and the peak of additional memory in bytes."""
        Path(f"/proc/{self.gateway.process.pid}/clear_refs").write_text("5")  # forgets the peak
        bytes_before = self._read_bytes("VmRSS")
        status, _ = await self.request(method, path, data)
        return status, self._read_bytes("VmHWM") - bytes_before


@asynccontextmanager
async def open_measured_gateway(folder: Path) -> AsyncIterator[MeasuredGateway]:
    service = await start_simulator()
    try:
        (folder / "gateway.toml").write_text(build_configuration(service.url))
        await import_api_keys(build_settings(folder, service.url), [KEY])
        async with (
            run_serve(folder, command=COMMAND) as gateway,
            aiohttp.ClientSession() as session,
        ):
            yield MeasuredGateway(gateway, session)
    finally:
        await service.stop()


async def test_memory_of_many_small_entries_is_a_small_multiple_of_the_charge(
    tmp_path: Path,
) -> None:
    async with open_measured_gateway(tmp_path) as setup:
        _, response = await setup.request("POST", "/batches", b'{"sourceCurrency":"USD"}')
        batch = json.loads(response)["batch"]["id"]
        for (method, path, name), kinds in LIST_FIELDS.items():
            for entry in kinds:
                data = build_list_body(name, entry)
                status, byte_count = await setup.measure(method, path.format(batch=batch), data)
                assert status in (404, 406), (name, entry)
                assert byte_count < 3.5 * CHARGED_BYTES, (method, name, entry, byte_count)


async def test_memory_of_many_escapes_is_a_small_multiple_of_the_body(tmp_path: Path) -> None:
    async with open_measured_gateway(tmp_path) as setup:
        for escape in ("\\ud800", "\\u4e2d"):
            data = f'{{"name":"{escape * (4 * MEGABYTE)}"}}'.encode()
            status, byte_count = await setup.measure("POST", "/recipients", data)
            assert status == 406
            assert byte_count < 6 * len(data), (escape, byte_count / len(data))
