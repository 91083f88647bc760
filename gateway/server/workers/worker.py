"""A worker process, as the supervisor controls it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from gateway.server.listening import Queue
from gateway.server.workers.worker_config import Orders, encode_message


class NotStarted(Exception):
    """A worker exited before it accepted connections; the text is for the operator."""


@dataclass(slots=True)
class Child:
    """A started worker. ``admin_socket`` is the Unix socket of its admin pages."""

    process: asyncio.subprocess.Process
    hears: asyncio.StreamReader
    says: asyncio.StreamWriter
    admin: Path
    accepts: bool = False

    @classmethod
    async def start(
        cls, config: Path | None, door: Sequence[Queue], queues: Sequence[int], admin: Path
    ) -> Self:
        """Start a worker with a configuration and inherited sockets; raises WorkerStartError."""
        ours, its = socket.socketpair()
        descriptors = [[one.fileno() for one in queue] for queue in door]
        named = str(config) if config else None
        orders = Orders(named, descriptors, list(queues), its.fileno(), str(admin))
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(),
                orders.written(),
                stdin=subprocess.DEVNULL,
                pass_fds=(*chain(*descriptors), its.fileno()),
                process_group=0,  # the terminal's Ctrl-C must reach only the supervisor
            )
        except OSError as error:
            ours.close()
            raise NotStarted(f"no process can be started ({error.strerror})") from None
        finally:
            # The supervisor must not keep the worker's end open: it notices its exit by the end of stream.
            its.close()
        return cls(process, *await asyncio.open_connection(sock=ours), admin)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def until_it_accepts(self) -> None:
        """Wait for the worker's first message; raises WorkerStartError."""
        with suppress(ConnectionError):
            said = await self.hears.readline()
            told = json.loads(said) if said else {}
            self.accepts = told.get("accepts", False)
            if why := told.get("failed"):
                raise NotStarted(why)
        if not self.accepts:
            how = describe_exit_code(await self.process.wait())
            raise NotStarted(f"a worker exited before it accepted connections ({how}); see the log")

    def take_from(self, queues: Iterable[int]) -> None:
        """Tell the worker to accept connections from these queues only."""
        self.says.write(encode_message(queues=sorted(queues)))

    def retire(self) -> None:
        """Tell the worker to accept no new connections and to exit after its last response."""
        self.accepts = False
        self.says.write(encode_message(retire=True))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.accepts = False
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def gone(self) -> int:
        """Wait until the process exits; return its exit code, negative for a signal."""
        code = await self.process.wait()
        self.accepts = False
        self.says.close()
        self.admin.unlink(missing_ok=True)
        return code


def _command() -> list[str]:
    # Import modules from where this process did, not from the current directory.
    safely = [] if str(Path.cwd()) in sys.path else ["-P"]
    return [sys.executable, *safely, "-m", "gateway.server.workers"]


def describe_exit_code(code: int) -> str:
    """Describe the exit code of a process, or the signal that killed it."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
