"""Runs the installed command as a process."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "gateway"]
"""A new process that imports the whole program; ``build_command`` starts one in less time."""

SECONDS = 60
"""Limit for a start or a shutdown on a busy machine."""


@cache
def _start_server() -> str:
    """Starts the server of ``tests.forked_command`` once; returns its address."""
    address = str(Path(tempfile.mkdtemp()) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked_command", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        env=build_environment(),
    )
    atexit.register(server.communicate)  # it ends when its input does
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return address


def build_command(module: str = "gateway") -> list[str]:
    """The command, or another module that is run, forked from a server that has imported the gateway."""
    script = str(Path(__file__).with_name("forked_command.py"))
    # Without site-packages, because it imports a few modules of the standard library only.
    return [sys.executable, "-IS", script, _start_server(), module]


def build_environment(**variables: str) -> dict[str, str]:
    """This process's environment without the gateway's variables, plus these."""
    environment = {
        name: value for name, value in os.environ.items() if "PAYOUT_GATEWAY" not in name
    }
    return {**environment, **variables}


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether something on this machine accepts connections to the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def run_installed_command(
    *arguments: str, folder: Path, stdin: str = "", seconds: float = SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command of the gateway in a folder until it ends."""
    return subprocess.run(
        [*build_command(), *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env=build_environment(**variables),
    )


def build_configuration(base_url: str, *lines: str) -> str:
    """A gateway.toml with a sandbox, all files in its folder and ports chosen by the system."""
    return "\n".join(
        [
            "[server]\nport = 0\nadmin_port = 0",
            f'[environments.sandbox]\nbase_url = "{base_url}"',
            '[state]\nurl = "sqlite:///gateway.db"\nencryption_key_file = "gateway.key"',
            *lines,
        ]
    )


@dataclass(slots=True)
class Process:
    """A running `serve`; ``log`` is the file that receives its standard error."""

    process: asyncio.subprocess.Process
    output: str
    port: int
    admin_port: int
    log: Path
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def read_log(self) -> str:
        return self.log.read_text("utf-8")

    def parse_log(self) -> list[dict[str, Any]]:
        """The log lines, each of which must be a JSON object."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            complete_lines, _, _partial_line = log.read().rpartition(b"\n")
        if complete_lines:
            self._lines += map(json.loads, complete_lines.split(b"\n"))
            self._read += len(complete_lines) + 1
        return self._lines

    async def stop(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def run_serve(
    folder: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    command: Sequence[str] | None = None,
) -> AsyncIterator[Process]:
    """Runs `serve` in a folder and yields once it accepts connections; kills it if it is left running."""
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(command or build_command()),
            "serve",
            *arguments,
            cwd=folder,
            env=build_environment(**(variables or {})),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            output = ""
            while "accepts connections" not in output:
                line = await process.stdout.readline()
                assert line, f"it ended: {log.read_text('utf-8')}"
                output += line.decode()
        ports = re.findall(r"https?://127\.0\.0\.\d:(\d+)", output.splitlines()[-1])
        yield Process(process, output, int(ports[0]), int(ports[1]), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
