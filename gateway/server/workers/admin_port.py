"""The admin port of several workers.

``/healthz`` reports that the supervisor runs. ``/readyz`` combines the answers of all workers, and
``/metrics`` has the series of each, with a label ``worker``. Other requests are forwarded to the first
worker.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.port import (
    CHECK_SECONDS,
    answer_liveness,
    build_readiness_body,
    create_metrics_handler,
    drop_consequences,
    hide_server_version,
)
from gateway.admin.worker_pages import WorkerPage, fetch_from_each_worker, send_request_to_worker
from gateway.observability.metrics import render_metrics

BREAKER_STATES_BY_SEVERITY = ("", "closed", "half_open", "open")
"""States of a circuit breaker in order of severity."""

ListWorkers = Callable[[], Sequence[Path]]
"""Returns the Unix sockets of the workers that accept connections now; a name is a worker's number."""

OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0"
"""The format that workers are asked for."""

SCRAPE_SECONDS = 8
"""Less than Prometheus's default scrape timeout of ten seconds."""


def create_workers_admin_application(
    list_workers: ListWorkers, middlewares: Sequence[Middleware] = ()
) -> web.Application:
    async def answer_readiness(_request: web.Request) -> web.Response:
        readiness = _merge_readiness(
            # Longer than a worker's own limit, so that its answer names the check that is slow.
            await fetch_from_each_worker(list_workers(), "/readyz", CHECK_SECONDS + 1)
        )
        return web.json_response(readiness, status=503 if readiness["status"] == "error" else 200)

    async def render_worker_metrics(accept_header: str) -> tuple[bytes, str]:
        return render_metrics(
            accept_header, WorkerMetricsCollector(await _scrape_workers(list_workers()))
        )

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
    application.router.add_get("/metrics", create_metrics_handler(render_worker_metrics))
    application.router.add_route("*", "/{path:.*}", forward_to_worker)
    return application


async def _scrape_workers(worker_sockets: Sequence[Path]) -> dict[str, str]:
    """Returns the metrics pages by the number of the worker, of those that answer."""
    pages = await fetch_from_each_worker(
        worker_sockets, "/metrics", SCRAPE_SECONDS, {"Accept": OPENMETRICS_CONTENT_TYPE}
    )
    return {
        worker.name: page.body.decode()
        for worker, page in zip(worker_sockets, pages, strict=True)
        if page and page.status == 200
    }


class WorkerMetricsCollector(Collector):
    """Exposes the series of all workers, each with the number of its worker as a label.

    They are not added up: the sum would decrease when a worker is replaced, which looks like a
    restart of all.
    """

    def __init__(self, pages_by_worker: Mapping[str, str]) -> None:
        self._pages_by_worker = pages_by_worker

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for worker, page in self._pages_by_worker.items():
            for metric in text_string_to_metric_families(page):  # type: ignore[no-untyped-call] # the library's own
                family = families.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type)
                )
                family.samples += [
                    sample._replace(labels={**sample.labels, "worker": worker})
                    for sample in metric.samples
                ]
        yield from families.values()


def _merge_readiness(pages: Sequence[WorkerPage | None]) -> dict[str, Any]:
    """Merges the workers' /readyz: ready if one answers and all that answer are ready."""
    reports = [json.loads(page.body) for page in pages if page]
    faults = {name: fault for report in reports for name, fault in report["faults"].items()}
    if not pages:
        faults["workers"] = (
            "none accepts connections; they may still be starting, otherwise see the log"
        )
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
