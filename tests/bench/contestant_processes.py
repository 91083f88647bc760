"""Starts the contestants, each as one process on the server's core, in front of one service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import machine, nginx
from tests.bench.workloads import ACCESS_KEY, API_KEY, SECRET_KEY
from tests.processes import Process, find_free_port, is_listening, run_installed_command, run_serve

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parent.parent
INSTALLED = PROJECT / ".bench"
START_SECONDS = 60

PASSING, FASTAPI, NODE, NGINX = (
    "aiohttp, passing on",
    "FastAPI + httpx",
    "fastify + undici",
    "nginx + Lua",
)
GATEWAY, ON_POSTGRES = "payout-gateway", "payout-gateway, PostgreSQL"

CONFIGURATION = """
[server]
port = 0
admin_port = 0
[environments.sandbox]
base_url = "http://127.0.0.1:{port}"
{more}
[state]
url = "{state}"
encryption_key_file = "gateway.key"
[limits]
requests_per_hour = 1_000_000_000
"""
"""All else is the default: logs, metrics, database, rate limits and bounds are on."""


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    port: int
    pid: int


@asynccontextmanager
async def find_process(
    port: int, *arguments: str, start_seconds: float = START_SECONDS, **variables: str
) -> AsyncIterator[int]:
    """The id of the process that listens on the port."""
    with (INSTALLED / "output").open("ab") as output:
        running = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=PROJECT,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )
    try:
        async with asyncio.timeout(start_seconds):
            while not is_listening(port):
                if running.returncode is not None:
                    raise SystemExit(f"{arguments[0]} has ended; see {INSTALLED / 'output'}")
                await asyncio.sleep(0.05)
        yield running.pid
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@asynccontextmanager
async def start_service(delay_seconds: float = 0.0) -> AsyncIterator[int]:
    port = find_free_port()
    arguments = (sys.executable, "-m", "tests.bench.service", str(port), str(delay_seconds))
    async with find_process(port, *arguments):
        yield port


async def prepare_gateway(
    folder: Path, service_port: int, state: str, extra_sections: str = ""
) -> None:
    """Prepares a gateway's folder: its configuration with ``more``, its database and one key."""
    folder.mkdir()
    configuration = CONFIGURATION.format(port=service_port, state=state, more=extra_sections)
    (folder / "gateway.toml").write_text(configuration)
    key = {
        "merchant": "bench",
        "environment": "sandbox",
        "api_key": API_KEY,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    await run_command(folder, "keys", "new-encryption-key")
    await run_command(folder, "keys", "import", "-", stdin=json.dumps(key))


@asynccontextmanager
async def start_gateway(
    name: str, folder: Path, service_port: int, state: str
) -> AsyncIterator[Contestant]:
    await prepare_gateway(folder, service_port, state)
    async with run_gateway(folder) as running:
        yield Contestant(name, running.port, running.process.pid)


def run_gateway(folder: Path, module: str = "gateway") -> AbstractAsyncContextManager[Process]:
    """Runs a gateway as the process itself: that of a forked command only waits for its end."""
    command = [sys.executable, "-m", module]
    return run_serve(
        folder, command=command, variables={"PYTHONPATH": str(PROJECT)}, seconds=START_SECONDS
    )


def point_at_service(service_port: int, configuration: str) -> str:
    """Points a gateway's configuration at another service."""
    return re.sub(
        r"(?m)^base_url = .*", f'base_url = "http://127.0.0.1:{service_port}"', configuration
    )


async def run_command(folder: Path, *arguments: str, stdin: str = "") -> None:
    process = await asyncio.to_thread(
        run_installed_command, *arguments, folder=folder, stdin=stdin, seconds=60
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {process.stderr}")


class Contestants:
    """The contestants that started, and why each other one did not."""

    def __init__(self, stack: AsyncExitStack, folder: Path, service_port: int) -> None:
        self.started: list[Contestant] = []
        self.missing: dict[str, str] = {}
        self._stack = stack
        self._folder = folder
        self._service_port = service_port

    async def passing(self) -> None:
        port = find_free_port()
        module = "tests.bench.contestants.passing"
        arguments = (sys.executable, "-m", module, str(port), str(self._service_port))
        await self._process(PASSING, port, *arguments)

    async def fastapi(self) -> None:
        python, port = INSTALLED / "python" / "bin" / "python", find_free_port()
        if not python.exists():
            self.missing[FASTAPI] = "it is not installed; make bench installs it into .bench"
            return
        arguments = (
            "-m",
            "uvicorn",
            "--app-dir",
            str(FOLDER / "contestants"),
            "fastapi_gateway:app",
        )
        await self._process(FASTAPI, port, str(python), *arguments, "--port", str(port))

    async def node(self) -> None:
        node, port = shutil.which("node"), find_free_port()
        if node is None or not (INSTALLED / "node_modules").exists():
            self.missing[NODE] = "there is no Node, or npm could not install it into .bench"
            return
        await self._process(NODE, port, node, str(FOLDER / "contestants" / "fastify_gateway.cjs"))

    async def nginx(self) -> None:
        port = find_free_port()
        arguments = nginx.prepare_nginx(self._folder / "nginx", port, self._service_port)
        if isinstance(arguments, str):
            self.missing[NGINX] = arguments
            return
        await self._process(NGINX, port, *arguments)

    async def gateways(self, postgres: str | None) -> None:
        await self._gateway(GATEWAY, "sqlite:///gateway.db")
        if postgres:
            await self._gateway(ON_POSTGRES, postgres)
        else:
            self.missing[ON_POSTGRES] = "POSTGRES=postgresql://… names an empty database for it"

    async def _gateway(self, name: str, state: str) -> None:
        gateway_context = start_gateway(name, self._folder / name, self._service_port, state)
        self.started.append(await self._stack.enter_async_context(gateway_context))

    async def _process(self, name: str, port: int, *arguments: str) -> None:
        variables = {
            "SERVICE": f"http://127.0.0.1:{self._service_port}",
            "PORT": str(port),
            "NODE_PATH": str(INSTALLED / "node_modules"),
        }
        pid = await self._stack.enter_async_context(find_process(port, *arguments, **variables))
        self.started.append(Contestant(name, port, pid))


@asynccontextmanager
async def start_contestants(
    folder: Path, service_port: int, postgres: str | None
) -> AsyncIterator[tuple[list[Contestant], Mapping[str, str]]]:
    """The running contestants, and why each other one does not run."""
    async with AsyncExitStack() as stack:
        field = Contestants(stack, folder, service_port)
        with machine.pin_to_cores(machine.select_cores()[0]):
            await field.passing()
            await field.fastapi()
            await field.node()
            await field.nginx()
            await field.gateways(postgres)
        yield field.started, field.missing
