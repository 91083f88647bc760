"""The whole house for a test: a gateway on real sockets, in front of a service of the test's own."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.config.settings import Settings
from gateway.server.app import Running, run_gateway
from gateway.storage import open_store
from gateway.writes.instances import GONE_SECONDS
from tests.states import files_of, lay_out, put

ENVIRONMENT = "sandbox"
KEY = {
    "merchant": "demo",
    "environment": ENVIRONMENT,
    "api_key": "an-api-key-for-tests",
    "access_key": "SIMULATORACCESSKEY",
    "secret_key": "simulator-secret-key",
}


@dataclass(slots=True)
class Got:
    """An answer: status, headers, the body's bytes, and the body read where it is JSON."""

    status: int
    headers: Mapping[str, str]
    text: str
    body: Any


@dataclass(slots=True)
class House:
    """A running gateway and a client in front of it."""

    running: Running
    settings: Settings
    session: aiohttp.ClientSession
    api_key: str = KEY["api_key"]
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Got:
        """Sends ``path`` (from /v1 on, with its query) as it is written."""
        sent = {"X-API-Key": self.api_key, **self.headers, **(headers or {})}
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        url = aiohttp.client.URL(self.running.url + path, encoded=True)
        async with self.session.request(method, url, data=data, headers=sent) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json" and method != "HEAD"
            return Got(answer.status, answer.headers, text, json.loads(text) if is_json else None)

    async def import_key(self, **changes: Any) -> str:
        """Imports one key more, as the command line would; returns it."""
        line = {**KEY, **changes}
        await import_lines(self.settings, [line])
        return str(line["api_key"])


def settings_for(folder: Path, base_url: str, **sections: Mapping[str, Any]) -> Settings:
    """Settings with everything in ``folder`` and every port free; sections laid over."""
    written: dict[str, Any] = {
        "server": {"port": 0, "admin_port": 0},
        "environments": {ENVIRONMENT: {"base_url": base_url}},
        "state": {
            "url": f"sqlite:///{folder}/gateway.db",
            "encryption_key_file": str(folder / "gateway.key"),
        },
        "upstream": {"timeout_seconds": 5},
    }
    for name, section in sections.items():
        written[name] = {**written.get(name, {}), **section}
    return Settings(**written)


_with_a_key: list[bytes] = []
"""A state's files with KEY imported, once in a process."""


async def import_lines(settings: Settings, lines: list[dict[str, Any]]) -> None:
    files = files_of(settings.state)
    is_usual = lines == [KEY] and files and not any(file.exists() for file in files)
    if is_usual and _with_a_key:
        for file, data in zip(files, _with_a_key, strict=True):
            put(file, data)
        return
    data = "\n".join(json.dumps(line) for line in lines).encode()
    async with open_store(lay_out(settings.state)) as store:
        await import_keys(store, parse_key_lines(data))
    if is_usual:
        _with_a_key[:] = [file.read_bytes() for file in files]  # two may import at a time


@asynccontextmanager
async def open_house(
    folder: Path,
    base_url: str,
    monotonic: Callable[[], float] = time.monotonic,
    gone_seconds: float = GONE_SECONDS,
    **sections: Mapping[str, Any],
) -> AsyncIterator[House]:
    """A gateway in front of ``base_url``, with one key."""
    settings = settings_for(folder, base_url, **sections)
    await import_lines(settings, [KEY])
    its = run_gateway(settings, monotonic=monotonic, gone_seconds=gone_seconds)
    async with its as running, aiohttp.ClientSession() as session:
        yield House(running, settings, session)
