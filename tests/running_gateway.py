"""Runs a gateway on real sockets in front of a service that the test provides."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.config.settings import Settings
from gateway.observability import logs
from gateway.server.app import RunningGateway, run_gateway
from gateway.server.process import install_shutdown_event
from gateway.upstream.clock import ServiceClock
from gateway.writes import outcome_policy
from gateway.writes.instance_leases import LEASE_TTL_SECONDS
from tests.openapi_document import build_openapi_document
from tests.state import ENVIRONMENT, KEY, import_api_keys

_SHORT_SECONDS = {
    "CONFIRMATION_PAUSE_SECONDS": 0.25,
    "MAX_PAGE_AGE_SECONDS": 0.25,
    "MAX_UNREADABLE_PAUSE_SECONDS": 1.0,
}
_PRODUCT_SECONDS = {name: getattr(outcome_policy, name) for name in _SHORT_SECONDS}


@dataclass(slots=True)
class GatewayResponse:
    """A response; ``body`` is the parsed JSON, None if it is not JSON."""

    status: int
    headers: Mapping[str, str]
    text: str
    body: Any


@dataclass(slots=True)
class GatewayUnderTest:
    """A running gateway and an HTTP client."""

    running: RunningGateway
    settings: Settings
    session: aiohttp.ClientSession
    api_key: str = KEY["api_key"]
    headers: dict[str, str] = field(default_factory=dict)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> GatewayResponse:
        """Sends ``path`` (``/v1/...``, with its query) byte for byte."""
        sent_headers = {"X-API-Key": self.api_key, **self.headers, **(headers or {})}
        if body is not None:
            data = json.dumps(body).encode()
            sent_headers.setdefault("Content-Type", "application/json")
        url = aiohttp.client.URL(self.running.url + path, encoded=True)
        async with self.session.request(method, url, data=data, headers=sent_headers) as response:
            text = await response.text()
            is_json = response.content_type == "application/json" and method != "HEAD"
            return GatewayResponse(
                response.status, response.headers, text, json.loads(text) if is_json else None
            )

    async def import_key(self, **changes: Any) -> str:
        """Imports another key as the command line does, and returns it."""
        line = {**KEY, **changes}
        await import_api_keys(self.settings, [line])
        return str(line["api_key"])


def build_settings(folder: Path, base_url: str, **sections: Mapping[str, Any]) -> Settings:
    """Settings with all files in ``folder`` and ports chosen by the system, overridden by ``sections``."""
    values: dict[str, Any] = {
        "server": {"port": 0, "admin_port": 0},
        "environments": {ENVIRONMENT: {"base_url": base_url}},
        "state": {
            "url": f"sqlite:///{folder}/gateway.db",
            "encryption_key_file": str(folder / "gateway.key"),
        },
        "upstream": {"timeout_seconds": 5},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Settings(**values)


def build_clocks(
    monotonic: Callable[[], float], wall_clock: Callable[[], float] = time.time
) -> dict[str, ServiceClock]:
    """The clocks of a gateway in which unanswered writes age by the clock ``monotonic``."""
    clock = ServiceClock(wall_clock)
    outcome_clock = copy.copy(clock)  # with the same measured skews
    outcome_clock.wall = lambda: wall_clock() + monotonic() - time.monotonic()
    outcome_clock.monotonic = monotonic
    return {"clock": clock, "outcome_clock": outcome_clock}


_shortened: list[None] = []
"""An entry for each gateway that is running."""


@contextmanager
def shorten_reading_pauses() -> Iterator[None]:
    """Shortens the pauses between reads, of which one is seven seconds; the simulation has the real ones."""
    _shortened.append(None)
    for name, seconds in _SHORT_SECONDS.items():
        setattr(outcome_policy, name, seconds)
    try:
        yield
    finally:
        _shortened.pop()
        if not _shortened:
            for name, seconds in _PRODUCT_SECONDS.items():
                setattr(outcome_policy, name, seconds)


@asynccontextmanager
async def open_gateway(
    folder: Path,
    base_url: str,
    monotonic: Callable[[], float] = time.monotonic,
    lease_seconds: float = LEASE_TTL_SECONDS,
    **sections: Mapping[str, Any],
) -> AsyncIterator[GatewayUnderTest]:
    """Runs a gateway in front of ``base_url`` with one API key."""
    settings = build_settings(folder, base_url, **sections)
    await import_api_keys(settings, [KEY])
    gateway_context = run_gateway(settings, **build_clocks(monotonic), lease_seconds=lease_seconds)
    with shorten_reading_pauses():
        async with gateway_context as running, aiohttp.ClientSession() as session:
            yield GatewayUnderTest(running, settings, session)


async def run_until_shutdown(
    settings: Settings,
    on_start: Callable[[RunningGateway], None],
    monotonic: Callable[[], float] = time.monotonic,
    lease_seconds: float | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> None:
    """Runs a gateway as the command does, until the process gets SIGTERM."""
    shutdown = install_shutdown_event()
    lease_seconds = LEASE_TTL_SECONDS if lease_seconds is None else lease_seconds
    clocks = build_clocks(monotonic, wall_clock)
    running_gateway = run_gateway(settings, **clocks, lease_seconds=lease_seconds)
    async with running_gateway as running:
        on_start(running)
        await shutdown.wait()


def configure_logging() -> None:
    """Logs as the command does."""
    logs.configure_logging()


def describe_interface() -> dict[str, Any]:
    """The OpenAPI document of the legacy interface."""
    return build_openapi_document()
