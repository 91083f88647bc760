"""The admin port of several workers.

``/healthz`` reports that the supervisor runs. ``/readyz`` and ``/metrics`` combine the answers of
all workers. Other requests are forwarded to the oldest worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.port import (
    CHECK_SECONDS,
    build_readiness_body,
    create_metrics_handler,
    drop_consequences,
    hide_server_version,
)
from gateway.admin.worker_pages import (
    WorkerPage,
    fetch_from_each_worker,
    send_request_to_worker,
)
from gateway.server.workers.metrics_aggregation import OPENMETRICS_CONTENT_TYPE, MetricsAggregator

BREAKER_STATES_BY_SEVERITY = ("", "closed", "half_open", "open")
"""States of a circuit breaker in order of severity."""

ListWorkers = Callable[[], Sequence[Path]]
"""Returns the Unix sockets of the workers that accept connections now."""


SCRAPE_SECONDS = 8
"""Less than Prometheus's default scrape timeout of ten seconds."""


def create_workers_admin_application(
    list_workers: ListWorkers, middlewares: Sequence[Middleware] = ()
) -> web.Application:
    aggregator = MetricsAggregator(list_workers, _scrape_workers)

    async def answer_liveness(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def answer_readiness(_request: web.Request) -> web.Response:
        readiness = _merge_readiness(
            # Longer than a worker's own limit, so that its answer names the check that is slow.
            await fetch_from_each_worker(list_workers(), "/readyz", CHECK_SECONDS + 1)
        )
        return web.json_response(readiness, status=503 if readiness["status"] == "error" else 200)

    async def forward_to_worker(request: web.Request) -> web.Response:
        body = await request.read()
        headers = CIMultiDict(request.headers)
        # Assigned rather than added, because a client may have sent this header itself.
        headers[CLIENT_ADDRESS_HEADER] = request.remote or ""
        for worker in list_workers():
            try:
                worker_page = await send_request_to_worker(
                    worker, request.method, request.raw_path, headers, body
                )
            except aiohttp.ClientConnectorError:
                continue  # this worker is just exiting
            except (aiohttp.ClientError, TimeoutError):
                # The worker may have executed an action, which must not be done twice.
                break
            return web.Response(
                status=worker_page.status, headers=worker_page.headers, body=worker_page.body
            )
        return web.json_response(_merge_readiness([None]), status=503)

    application = web.Application(middlewares=middlewares)
    application.on_response_prepare.append(hide_server_version)
    application.router.add_get("/healthz", answer_liveness)
    application.router.add_get("/readyz", answer_readiness)
    application.router.add_get("/metrics", create_metrics_handler(aggregator.render_page))
    application.router.add_route("*", "/{path:.*}", forward_to_worker)
    return application


async def _scrape_workers(worker_sockets: Sequence[Path]) -> list[str | None]:
    pages = await fetch_from_each_worker(
        worker_sockets, "/metrics", SCRAPE_SECONDS, {"Accept": OPENMETRICS_CONTENT_TYPE}
    )
    return [page.body.decode() if page and page.status == 200 else None for page in pages]


def _merge_readiness(pages: Sequence[WorkerPage | None]) -> dict[str, Any]:
    """Merges the workers' /readyz: ready if one answers and all that answer are ready."""
    reports = [json.loads(page.body) for page in pages if page]
    faults = {name: fault for report in reports for name, fault in report["faults"].items()}
    if not pages:
        faults["workers"] = "none accepts connections; see the log"
    elif silent_count := len(pages) - len(reports):
        faults["workers"] = f"{silent_count} of {len(pages)} do not answer"
    is_ready = bool(reports) and all(report["status"] != "error" for report in reports)
    faults = drop_consequences(faults)
    return build_readiness_body(faults, _find_worst_breaker_states(reports), is_ready=is_ready)


def _find_worst_breaker_states(reports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the worst circuit breaker state per environment, as each worker has its own."""
    worst_states: dict[str, str] = {}
    for report in reports:
        for name, state in report["circuit_breakers"].items():
            worst_states[name] = max(
                worst_states.get(name, ""), state, key=BREAKER_STATES_BY_SEVERITY.index
            )
    return worst_states
