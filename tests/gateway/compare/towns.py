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
from gateway.compare.examples import ExampleBuilder
from gateway.compare.findings import Findings
from gateway.compare.id_map import IdMap
from gateway.compare.inputs import parse_input
from gateway.compare.mask import Redactor
from gateway.compare.report import build_report, redact_api_keys
from gateway.compare.report_schema import Report
from gateway.compare.rules import Rules
from gateway.compare.run import Options, Run

CONTROL_KEY, CANDIDATE_KEY = "the-key-of-control", "the-key-of-candidate"


@dataclass(slots=True)
class Heard:
    method: str
    target: str
    body: str
    headers: dict[str, str]

    @property
    def line(self) -> str:
        return f"{self.method} {self.target}"


@dataclass(slots=True)
class Said:
    """An answer, sent after ``wait`` seconds, or a dropped connection if ``drops`` is set."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0
    drops: bool = False


Says = Callable[[Heard], Said | Any]


@dataclass(slots=True)
class Town:
    """A running fake service; ``most_at_once`` is its highest number of concurrent requests."""

    says: Says
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def lines(self) -> list[str]:
        return [one.line for one in self.heard]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        heard = Heard(request.method, request.raw_path, await request.text(), headers)
        self.heard.append(heard)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            said = self.says(heard)
            if isinstance(said, Awaitable):
                said = await said
            said = said if isinstance(said, Said) else Said(said)
            if said.wait:
                await asyncio.sleep(said.wait)
        finally:
            self.at_once -= 1
        if said.drops and request.transport:
            request.transport.close()
        body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
        headers = {"Content-Type": "application/json", **said.headers}
        return web.Response(body=body, status=said.status, headers=headers)


@asynccontextmanager
async def open_town(says: Says) -> AsyncIterator[Town]:
    town = Town(says)
    runner = web.ServerRunner(web.Server(town.answer), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        town.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield town
    finally:
        await runner.cleanup()


@dataclass(slots=True)
class Compared:
    report: Report
    control: Town
    candidate: Town

    def differences(self) -> list[list[Any]]:
        return [[one["kind"], one["path"], one["answers"]] for one in self.report["differences"]]


async def compared(
    control: Says,
    candidate: Says,
    *inputs: str,
    rules: Rules | None = None,
    ids: str = "paired",
    show_values: bool = False,
    seconds: float = 5,
    examples: int = 5,
    **options: Any,
) -> Compared:
    """Compare two fake services over the given inputs."""
    async with AsyncExitStack() as stack:
        towns = [await stack.enter_async_context(open_town(says)) for says in (control, candidate)]
        return Compared(
            await report(
                [towns[0].url, towns[1].url],
                *inputs,
                rules=rules,
                ids=ids,
                show_values=show_values,
                seconds=seconds,
                examples=examples,
                **options,
            ),
            *towns,
        )


async def report(
    urls: list[str],
    *inputs: str,
    rules: Rules | None = None,
    ids: str = "paired",
    show_values: bool = False,
    seconds: float = 5,
    examples: int = 5,
    keys: tuple[str, str] = (CONTROL_KEY, CANDIDATE_KEY),
    **options: Any,
) -> Report:
    given = Options(**options)
    eye = Redactor(keys, show_values)
    run = Run(
        [
            parse_input(text, f"input {number}", rules or Rules())
            for number, text in enumerate(inputs, start=1)
        ],
        Side("control", urls[0], keys[0], timeout_seconds=seconds, concurrency=given.concurrency),
        Side("candidate", urls[1], keys[1], timeout_seconds=seconds, concurrency=given.concurrency),
        Findings(ExampleBuilder(eye), examples),
        IdMap(has_separate_ids=ids == "paired"),
        given,
        run_token="token",
        own_values=("0123456789ab", "ba9876543210"),
    )
    await run.execute()
    return redact_api_keys(build_report(run), eye)


def har(*entries: tuple[Any, ...]) -> str:
    """Build a HAR document from tuples of method, URL, body, recorded answer and headers."""
    written = []
    for method, url, *more in entries:
        body, answer, headers = [*more, None, None, None][:3]
        request: dict[str, Any] = {
            "method": method,
            "url": url,
            "headers": [{"name": name, "value": value} for name, value in (headers or {}).items()],
        }
        if body is not None:
            request["postData"] = {"mimeType": "application/json", "text": json.dumps(body)}
        content = {"mimeType": "application/json", "text": json.dumps(answer)}
        written.append({"request": request, "response": {"status": 200, "content": content}})
    return json.dumps({"log": {"version": "1.2", "creator": {}, "entries": written}})


EXAMPLES = Path(__file__).parents[3] / "deploy" / "compare"
