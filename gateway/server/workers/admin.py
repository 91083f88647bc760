"""The admin port of several workers.

``/healthz`` reports that the supervisor runs. ``/readyz`` and ``/metrics`` combine the answers of all
workers. Other requests are forwarded to the oldest worker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict
from yarl import URL

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.port import (
    CHECK_SECONDS,
    create_metrics_handler,
    describe_readiness,
    hide_server_version,
)
from gateway.server.workers.metrics import OPEN_METRICS, Added

ANSWER_SECONDS = 60
"""Timeout for a page of a worker; generous, because no client request waits for it."""

OF_ONE_CONNECTION = {
    *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("content-length", "date", "server"),  # set again for the forwarded message
}

WORSE = ("", "closed", "half_open", "open")
"""States of a circuit breaker in order of severity."""

Workers = Callable[[], Sequence[Path]]
"""Returns the Unix sockets of the workers that accept connections now."""


class Page(NamedTuple):
    status: int
    headers: CIMultiDict[str]
    body: bytes


METRICS_SECONDS = 8
"""Less than Prometheus's default scrape timeout of ten seconds."""


def create_worker_metrics(workers: Workers) -> Added:
    async def ask(those: Sequence[Path]) -> list[str | None]:
        found = await fetch_from_each_worker(
            those, "/metrics", METRICS_SECONDS, {"Accept": OPEN_METRICS}
        )
        return [one.body.decode() if one and one.status == 200 else None for one in found]

    return Added(workers, ask)


def create_workers_admin_application(
    workers: Workers, metrics: Added, doors: Sequence[Middleware] = ()
) -> web.Application:
    async def up(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_request: web.Request) -> web.Response:
        told = _ready(await fetch_from_each_worker(workers(), "/readyz", CHECK_SECONDS + 1))
        return web.json_response(told, status=503 if told["status"] == "error" else 200)

    async def page(request: web.Request) -> web.Response:
        body = await request.read()
        headers = CIMultiDict(request.headers)
        headers[CLIENT_ADDRESS_HEADER] = request.remote or ""
        for worker in workers():
            try:
                found = await _page(worker, request.method, request.raw_path, headers, body)
            except aiohttp.ClientConnectorError:
                continue  # this worker is just exiting
            except (aiohttp.ClientError, TimeoutError):
                break
            return web.Response(status=found.status, headers=found.headers, body=found.body)
        return web.json_response(_ready([None]), status=503)

    application = web.Application(middlewares=doors)
    application.on_response_prepare.append(hide_server_version)
    application.router.add_get("/healthz", up)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", create_metrics_handler(metrics.page))
    application.router.add_route("*", "/{path:.*}", page)
    return application


async def fetch_from_each_worker(
    workers: Sequence[Path],
    path: str,
    seconds: float,
    headers: Mapping[str, str] | None = None,
) -> list[Page | None]:
    """Fetch a page from each worker; None if one does not answer in time."""

    async def asked(worker: Path) -> Page | None:
        try:
            async with asyncio.timeout(seconds):
                return await _page(worker, "GET", path, headers)
        except (aiohttp.ClientError, TimeoutError):
            return None

    return list(await asyncio.gather(*map(asked, workers)))


async def _page(
    worker: Path,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Page:
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(worker)),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            auto_decompress=False,
        ) as session,
        session.request(
            method,
            # Encoded already: the worker must get the path unchanged.
            URL(f"http://worker{path}", encoded=True),
            headers=_end_to_end(headers or {}),
            data=body or None,
            allow_redirects=False,
        ) as answer,
    ):
        return Page(answer.status, _end_to_end(answer.headers), await answer.read())


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = [
        (name, value) for name, value in headers.items() if name.lower() not in OF_ONE_CONNECTION
    ]
    return CIMultiDict(kept)


def _ready(pages: Sequence[Page | None]) -> dict[str, Any]:
    """Merge the workers' /readyz: ready if one answers and all that answer are ready."""
    told = [json.loads(page.body) for page in pages if page]
    faults = {name: fault for one in told for name, fault in one["faults"].items()}
    if not pages:
        faults["workers"] = "none accepts connections; see the log"
    elif silent := len(pages) - len(told):
        faults["workers"] = f"{silent} of {len(pages)} do not answer"
    is_ready = bool(told) and all(one["status"] != "error" for one in told)
    return describe_readiness(faults, _worst(told), is_ready=is_ready)


def _worst(told: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the worst circuit breaker state of each environment, because each worker has its own."""
    found: dict[str, str] = {}
    for one in told:
        for name, state in one["circuit_breakers"].items():
            found[name] = max(found.get(name, ""), state, key=WORSE.index)
    return found
