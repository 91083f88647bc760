"""Traces: a request and its calls form one trace, and spans contain no client data."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from gateway.observability import traces
from gateway.simulator import Service, start
from tests.canaries import PERSON, assert_no_canary
from tests.house import KEY as LINE
from tests.house import House, import_lines, open_house, settings_for
from tests.operating import LOST, Post, eventually, logged, post
from tests.payday import make_batch, make_recipient
from tests.processes import command, configuration, serving
from tests.signed import CLIENT, asked, open_signed, recording
from tests.sockets import heard
from tests.test_leaks_elsewhere import KEY, everything
from tests.test_leaks_elsewhere import service as canary_service
from tests.valley import open_valley

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with traces.export_spans_to(exporter):
        yield exporter


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Post]:
    async with post(tmp_path) as found:
        yield found


async def kinds(exported: InMemorySpanExporter) -> tuple[list[ReadableSpan], list[ReadableSpan]]:
    """Waits for a finished request span; returns the spans of requests and of calls."""

    async def has_ended() -> bool:
        return any(one.kind is SpanKind.SERVER for one in exported.get_finished_spans())

    await eventually(has_ended)
    spans: Sequence[ReadableSpan] = exported.get_finished_spans()
    requests = [one for one in spans if one.kind is SpanKind.SERVER]
    return requests, [one for one in spans if one.kind is SpanKind.CLIENT]


async def test_a_request_and_its_calls_are_one_trace(
    here: Post, exported: InMemorySpanExporter
) -> None:
    recipient = await make_recipient(here.house)
    await kinds(exported)
    exported.clear()
    await make_batch(here.house, recipient, "10.00")
    (request,), calls = await kinds(exported)
    assert request.name == "POST /v1/batches"
    assert request.attributes is not None
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/batches",
        "http.response.status_code": 200,
        "payout_gateway.api": "legacy",
        "payout_gateway.operation": "create_batch",
        "payout_gateway.environment": "sandbox",
        "payout_gateway.outcome": "success",
    }
    assert [one.name for one in calls][:1] == ["POST /v1/batches"]
    assert "GET /v1/batch/{id}/summary" in {one.name for one in calls}
    for one in calls:
        assert one.parent is not None
        assert one.parent.span_id == request.context.span_id


async def test_the_client_s_trace_goes_on_and_the_service_is_told_of_it(
    here: Post, exported: InMemorySpanExporter
) -> None:
    given = {"traceparent": GIVEN, "tracestate": "who=ada@example.com"}
    await here.house.ask("GET", "/v1/profile/balances", headers=given)
    (request,), (call,) = await kinds(exported)
    assert format_trace_id(request.context.trace_id) == TRACE
    assert request.parent is not None
    assert format_span_id(request.parent.span_id) == PARENT
    (arrived,) = here.service.calls("GET", "/v1/balance")
    told = arrived.headers["traceparent"]
    assert told == f"00-{TRACE}-{format_span_id(call.context.span_id)}-01"
    assert "tracestate" not in arrived.headers
    assert TRACE in logged(here.folder)


async def test_a_forwarded_request_and_what_the_legacy_service_is_asked_are_one_trace(
    tmp_path: Path, exported: InMemorySpanExporter
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        exported.clear()
        path = "/v1/recipients/R-1234567890123456"
        await here.house.ask("GET", path, headers={"traceparent": GIVEN})
        (request,), (call,) = await kinds(exported)
        (arrived,) = here.legacy.calls("GET", path, face="legacy")
    assert call.name == "GET /v1/recipients/{id}"
    assert call.attributes is not None
    assert call.attributes["payout_gateway.service"] == "legacy"
    assert call.attributes["payout_gateway.outcome"] == "4xx"
    assert call.parent is not None
    assert call.parent.span_id == request.context.span_id
    assert arrived.headers["traceparent"] == f"00-{TRACE}-{format_span_id(call.context.span_id)}-01"


async def test_the_signed_text_is_the_same_with_and_without(here: Post) -> None:
    """The simulator checks every signature: a header that were signed would be refused."""
    assert (await here.house.ask("GET", "/v1/recipients")).status == 200
    with traces.export_spans_to(InMemorySpanExporter()):
        assert (await here.house.ask("GET", "/v1/recipients?page=2&search=x")).status == 200
    first, second = here.service.calls("GET", "/v1/recipients")[:2]
    assert "traceparent" not in first.headers
    assert "traceparent" in second.headers


async def test_what_failed_says_so_and_not_why(here: Post, exported: InMemorySpanExporter) -> None:
    recipient = await make_recipient(here.house)
    await kinds(exported)
    exported.clear()
    here.breaks("POST", "/v1/batches", **LOST)
    await here.house.ask(
        "POST", "/v1/batches", {"sourceCurrency": "USD", "payments": [
            {"recipient": {"id": recipient}, "sourceAmount": "10.00"}]}
    )  # fmt: skip
    (request,), calls = await kinds(exported)
    assert request.status.status_code is StatusCode.ERROR
    (lost,) = [one for one in calls if one.name == "POST /v1/batches"]
    assert lost.attributes is not None
    assert lost.attributes["error.type"] == "in_doubt"
    for one in (request, *calls):
        assert one.events == ()
        assert one.status.description is None


async def test_of_what_a_client_says_nothing_is_in_a_span(
    tmp_path: Path, exported: InMemorySpanExporter
) -> None:
    async with canary_service() as simulator, open_house(tmp_path, simulator.url) as house:
        await import_lines(house.settings, [KEY])
        house.headers["X-API-Key"] = KEY["api_key"]
        await everything(house)
        await odd(house)
    spans = exported.get_finished_spans()
    assert len(spans) > 50
    text = "\n".join(one.to_json() for one in spans)
    assert_no_canary(text)
    assert not re.search(r"[RBPA]-[A-Za-z0-9]{6,}", text), "no id either"
    names = {one.name for one in spans}
    assert {name for name in names if "?" in name} == set()


async def odd(house: House) -> None:
    for method, path in (
        ("GET", f"/v1/recipients?search={PERSON['email']}"),
        ("GET", "/v1/nowhere/R-1234567890123456"),
        ("PURGE", "/v1/recipients"),
    ):
        await house.ask(method, path, headers={"traceparent": "nonsense"})


async def test_a_signed_request_is_traced_too_and_arrives_as_the_call_of_it(
    tmp_path: Path, exported: InMemorySpanExporter
) -> None:
    async with recording() as behind, open_signed(tmp_path, behind.url) as house:
        request = CLIENT.request("GET", "/v1/recipients/R-1", b"", f"traceparent: {GIVEN}")
        assert (await asked(house, request)).status == 200
        (arrived,) = behind.requests
    (request_span,), (call,) = await kinds(exported)
    assert request_span.name == "GET signed"
    assert call.name == "GET /v1/recipients/{id}"
    told = arrived.headers["traceparent"]
    assert told == f"00-{TRACE}-{format_span_id(call.context.span_id)}-01"


async def test_how_much_is_recorded_is_decided_here(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    async with post(tmp_path) as here:
        with traces.export_spans_to(exporter, ratio=0.0):
            await here.house.ask("GET", "/v1/recipients", headers={"traceparent": GIVEN})
    assert exporter.get_finished_spans() == ()
    (arrived,) = here.service.calls("GET", "/v1/recipients")
    assert arrived.headers["traceparent"].endswith("-00"), "the service is told that it is not"


async def test_without_a_collector_there_is_no_span_and_no_header(here: Post) -> None:
    await here.house.ask("GET", "/v1/recipients", headers={"traceparent": GIVEN})
    (arrived,) = here.service.calls("GET", "/v1/recipients")
    assert "traceparent" not in arrived.headers
    assert traces.current_trace_id() is None


# As a process


class Collector:
    """Records the request lines of exported spans."""

    def __init__(self) -> None:
        self.posted: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        (length,) = re.findall(r"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length))
        self.posted.append(head.split("\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def test_a_process_sends_its_spans_to_the_collector_before_it_ends(tmp_path: Path) -> None:
    collector = Collector()
    server = await asyncio.start_server(collector, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    simulator = await start(service=Service(seed=1))
    traced = f'[traces]\nendpoint = "http://127.0.0.1:{port}"'
    (tmp_path / "gateway.toml").write_text(configuration(simulator.url, traced))
    try:
        await import_lines(settings_for(tmp_path, simulator.url), [LINE])
        async with serving(tmp_path) as gateway:
            key = LINE["api_key"]
            head = f"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n"
            await heard(gateway.port, head.encode())
            assert await gateway.ends() == 0
            (line,) = [one for one in gateway.lines() if one["event"] == "request"]
    finally:
        await simulator.stop()
        server.close()
    assert collector.posted[0].startswith("POST /v1/traces ")
    assert re.fullmatch("[0-9a-f]{32}", line["trace_id"])


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from gateway.cli import main
main()
"""


def test_without_the_extra_a_collector_is_one_line_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.processes.COMMAND", [sys.executable, "-c", WITHOUT])
    traced = '[traces]\nendpoint = "http://127.0.0.1:4318"'
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:1", traced))
    done = command("serve", folder=tmp_path)
    assert done.returncode == 2
    assert "payout-gateway[traces]" in done.stderr
    assert done.stderr.count("\n") == 1


async def test_without_the_extra_and_without_a_collector_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.processes.COMMAND", [sys.executable, "-c", WITHOUT])
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:1"))
    async with serving(tmp_path) as gateway:
        assert await gateway.ends() == 0
