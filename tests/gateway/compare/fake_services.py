"""Fake services for comparison tests: a function answers, and requests are recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.compare.endpoints import Side
from gateway.compare.findings import Findings
from gateway.compare.id_map import IdMap
from gateway.compare.inputs import parse_input
from gateway.compare.masking import Redactor
from gateway.compare.report import Report, build_report, redact_api_keys
from gateway.compare.rules import Rules
from gateway.compare.run import Run

CONTROL_KEY, CANDIDATE_KEY = "the-key-of-control", "the-key-of-candidate"


@dataclass(slots=True)
class ReceivedRequest:
    method: str
    target: str
    body: str
    headers: dict[str, str]

    @property
    def line(self) -> str:
        return f"{self.method} {self.target}"


@dataclass(slots=True)
class PlannedResponse:
    """An answer, sent after ``delay_seconds``, or a dropped connection if ``drops_connection``."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    drops_connection: bool = False


Responder = Callable[[ReceivedRequest], PlannedResponse | Any]


@dataclass(slots=True)
class FakeService:
    """A running fake service that records its requests and how many of them were concurrent."""

    respond: Responder
    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    current_requests: int = 0
    max_concurrent_requests: int = 0

    @property
    def lines(self) -> list[str]:
        return [received.line for received in self.requests]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = ReceivedRequest(request.method, request.raw_path, await request.text(), headers)
        self.requests.append(received)
        self.current_requests += 1
        self.max_concurrent_requests = max(self.max_concurrent_requests, self.current_requests)
        try:
            response = self.respond(received)
            if isinstance(response, Awaitable):
                response = await response
            response = (
                response if isinstance(response, PlannedResponse) else PlannedResponse(response)
            )
            if response.delay_seconds:
                await asyncio.sleep(response.delay_seconds)
        finally:
            self.current_requests -= 1
        if response.drops_connection and request.transport:
            request.transport.close()
        body = (
            response.body
            if isinstance(response.body, bytes)
            else json.dumps(response.body).encode()
        )
        headers = {"Content-Type": "application/json", **response.headers}
        return web.Response(body=body, status=response.status, headers=headers)


@asynccontextmanager
async def open_fake_service(responder: Responder) -> AsyncIterator[FakeService]:
    service = FakeService(responder)
    runner = web.ServerRunner(web.Server(service.handle), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()


@dataclass(slots=True)
class ComparisonRun:
    report: Report
    control: FakeService
    candidate: FakeService

    def list_differences(self) -> list[list[Any]]:
        return [
            [difference["kind"], difference["path"], difference["answers"]]
            for difference in self.report["differences"]
        ]


async def run_comparison(
    control: Responder,
    candidate: Responder,
    *inputs: str,
    rules: Rules | None = None,
    ids: str = "paired",
    show_values: bool = False,
    seconds: float = 5,
    examples: int = 5,
    **options: Any,
) -> ComparisonRun:
    """Compare two fake services over the given inputs."""
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(open_fake_service(responder))
            for responder in (control, candidate)
        ]
        return ComparisonRun(
            await build_comparison_report(
                [services[0].url, services[1].url],
                *inputs,
                rules=rules,
                ids=ids,
                show_values=show_values,
                seconds=seconds,
                examples=examples,
                **options,
            ),
            *services,
        )


async def build_comparison_report(
    urls: list[str],
    *inputs: str,
    rules: Rules | None = None,
    ids: str = "paired",
    show_values: bool = False,
    seconds: float = 5,
    examples: int = 5,
    keys: tuple[str, str] = (CONTROL_KEY, CANDIDATE_KEY),
    allow_writes: bool = False,
) -> Report:
    redactor = Redactor(keys, show_values)
    comparison_run = Run(
        [
            parse_input(text, f"input {number}", rules or Rules())
            for number, text in enumerate(inputs, start=1)
        ],
        Side("control", urls[0], keys[0], timeout_seconds=seconds),
        Side("candidate", urls[1], keys[1], timeout_seconds=seconds),
        Findings(redactor, examples),
        IdMap(has_separate_ids=ids == "paired"),
        allow_writes,
        run_token="token",
        own_values=("0123456789ab", "ba9876543210"),
    )
    await comparison_run.execute()
    return redact_api_keys(build_report(comparison_run), redactor)


def build_har(*entries: tuple[Any, ...]) -> str:
    """Build a HAR document from tuples of method, URL, body, recorded answer and headers."""
    entries_written = []
    for method, url, *optional_fields in entries:
        body, answer, headers = [*optional_fields, None, None, None][:3]
        request: dict[str, Any] = {
            "method": method,
            "url": url,
            "headers": [{"name": name, "value": value} for name, value in (headers or {}).items()],
        }
        if body is not None:
            request["postData"] = {"mimeType": "application/json", "text": json.dumps(body)}
        content = {"mimeType": "application/json", "text": json.dumps(answer)}
        entries_written.append(
            {"request": request, "response": {"status": 200, "content": content}}
        )
    return json.dumps({"log": {"version": "1.2", "creator": {}, "entries": entries_written}})


EXAMPLES = Path(__file__).parents[3] / "deploy" / "compare"
