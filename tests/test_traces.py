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
from tests.canaries import PERSON, assert_no_canary
from tests.legacy_and_current import open_gateway_between
from tests.operator_commands import (
    RESPONSE_LOST,
    OperatedGateway,
    open_operated_gateway,
    read_log,
    wait_until_async,
)
from tests.payouts import create_batch, create_recipient
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY as LINE
from tests.running_gateway import GatewayUnderTest, build_settings, import_api_keys, open_gateway
from tests.signed_requests import CLIENT, open_raw_service, open_signed_gateway, send_raw
from tests.simulator import Service, start_simulator
from tests.sockets import exchange
from tests.test_secrets_elsewhere import KEY, request_all_operations
from tests.test_secrets_elsewhere import open_service as canary_service

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with traces.export_spans_to(exporter):
        yield exporter


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[OperatedGateway]:
    async with open_operated_gateway(tmp_path) as setup:
        yield setup


async def wait_for_spans(
    exporter: InMemorySpanExporter,
) -> tuple[list[ReadableSpan], list[ReadableSpan]]:
    """Waits for a finished request span; returns the spans of requests and of calls."""

    async def has_ended() -> bool:
        return any(span.kind is SpanKind.SERVER for span in exporter.get_finished_spans())

    await wait_until_async(has_ended)
    spans: Sequence[ReadableSpan] = exporter.get_finished_spans()
    requests = [span for span in spans if span.kind is SpanKind.SERVER]
    return requests, [span for span in spans if span.kind is SpanKind.CLIENT]


async def test_request_and_its_calls_are_one_trace(
    setup: OperatedGateway, exporter: InMemorySpanExporter
) -> None:
    recipient = await create_recipient(setup.gateway)
    await wait_for_spans(exporter)
    exporter.clear()
    await create_batch(setup.gateway, recipient, "10.00")
    (request,), calls = await wait_for_spans(exporter)
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
    assert [call.name for call in calls][:1] == ["POST /v1/batches"]
    assert "GET /v1/batch/{id}/summary" in {call.name for call in calls}
    for call in calls:
        assert call.parent is not None
        assert call.parent.span_id == request.context.span_id


async def test_client_trace_is_continued_to_the_service(
    setup: OperatedGateway, exporter: InMemorySpanExporter
) -> None:
    headers = {"traceparent": TRACEPARENT, "tracestate": "who=ada@example.com"}
    await setup.gateway.request("GET", "/v1/profile/balances", headers=headers)
    (request,), (call,) = await wait_for_spans(exporter)
    assert format_trace_id(request.context.trace_id) == TRACE_ID
    assert request.parent is not None
    assert format_span_id(request.parent.span_id) == PARENT_ID
    (received_call,) = setup.service.list_requests("GET", "/v1/balance")
    traceparent = received_call.headers["traceparent"]
    assert traceparent == f"00-{TRACE_ID}-{format_span_id(call.context.span_id)}-01"
    assert "tracestate" not in received_call.headers
    assert TRACE_ID in read_log(setup.folder)


async def test_forwarded_request_and_its_legacy_call_are_one_trace(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        exporter.clear()
        path = "/v1/recipients/R-1234567890123456"
        await setup.gateway.request("GET", path, headers={"traceparent": TRACEPARENT})
        (request,), (call,) = await wait_for_spans(exporter)
        (received_call,) = setup.legacy.list_requests("GET", path, interface="legacy")
    assert call.name == "GET /v1/recipients/{id}"
    assert call.attributes is not None
    assert call.attributes["payout_gateway.service"] == "legacy"
    assert call.attributes["payout_gateway.outcome"] == "4xx"
    assert call.parent is not None
    assert call.parent.span_id == request.context.span_id
    assert (
        received_call.headers["traceparent"]
        == f"00-{TRACE_ID}-{format_span_id(call.context.span_id)}-01"
    )


async def test_traceparent_is_not_signed(setup: OperatedGateway) -> None:
    """The simulator checks every signature: a header that were signed would be refused."""
    assert (await setup.gateway.request("GET", "/v1/recipients")).status == 200
    with traces.export_spans_to(InMemorySpanExporter()):
        assert (await setup.gateway.request("GET", "/v1/recipients?page=2&search=x")).status == 200
    first_call, second_call = setup.service.list_requests("GET", "/v1/recipients")[:2]
    assert "traceparent" not in first_call.headers
    assert "traceparent" in second_call.headers


async def test_failed_span_has_no_description(
    setup: OperatedGateway, exporter: InMemorySpanExporter
) -> None:
    recipient = await create_recipient(setup.gateway)
    await wait_for_spans(exporter)
    exporter.clear()
    setup.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
    await setup.gateway.request(
        "POST", "/v1/batches", {"sourceCurrency": "USD", "payments": [
            {"recipient": {"id": recipient}, "sourceAmount": "10.00"}]}
    )  # fmt: skip
    (request,), calls = await wait_for_spans(exporter)
    assert request.status.status_code is StatusCode.ERROR
    (lost_call,) = [call for call in calls if call.name == "POST /v1/batches"]
    assert lost_call.attributes is not None
    assert lost_call.attributes["error.type"] == "in_doubt"
    for entry in (request, *calls):
        assert entry.events == ()
        assert entry.status.description is None


async def test_spans_contain_no_client_data(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async with canary_service() as simulator, open_gateway(tmp_path, simulator.url) as gateway:
        await import_api_keys(gateway.settings, [KEY])
        gateway.headers["X-API-Key"] = KEY["api_key"]
        await request_all_operations(gateway)
        await send_unusual_requests(gateway)
    spans = exporter.get_finished_spans()
    assert len(spans) > 50
    text = "\n".join(span.to_json() for span in spans)
    assert_no_canary(text)
    assert not re.search(r"[RBPA]-[A-Za-z0-9]{6,}", text), "no id either"
    names = {span.name for span in spans}
    assert {name for name in names if "?" in name} == set()


async def send_unusual_requests(gateway: GatewayUnderTest) -> None:
    for method, path in (
        ("GET", f"/v1/recipients?search={PERSON['email']}"),
        ("GET", "/v1/nowhere/R-1234567890123456"),
        ("PURGE", "/v1/recipients"),
    ):
        await gateway.request(method, path, headers={"traceparent": "nonsense"})


async def test_signed_request_is_traced(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async with open_raw_service() as service, open_signed_gateway(tmp_path, service.url) as gateway:
        request = CLIENT.build_request(
            "GET", "/v1/recipients/R-1", b"", f"traceparent: {TRACEPARENT}"
        )
        assert (await send_raw(gateway, request)).status == 200
        (received_request,) = service.requests
    (request_span,), (call,) = await wait_for_spans(exporter)
    assert request_span.name == "GET signed"
    assert call.name == "GET /v1/recipients/{id}"
    traceparent = received_request.headers["traceparent"]
    assert traceparent == f"00-{TRACE_ID}-{format_span_id(call.context.span_id)}-01"


async def test_sampling_ratio_overrides_the_client(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    async with open_operated_gateway(tmp_path) as setup:
        with traces.export_spans_to(exporter, ratio=0.0):
            await setup.gateway.request(
                "GET", "/v1/recipients", headers={"traceparent": TRACEPARENT}
            )
    assert exporter.get_finished_spans() == ()
    (received_call,) = setup.service.list_requests("GET", "/v1/recipients")
    assert received_call.headers["traceparent"].endswith("-00"), (
        "the service is told that it is not"
    )


async def test_tracing_is_off_without_a_collector(setup: OperatedGateway) -> None:
    await setup.gateway.request("GET", "/v1/recipients", headers={"traceparent": TRACEPARENT})
    (received_call,) = setup.service.list_requests("GET", "/v1/recipients")
    assert "traceparent" not in received_call.headers
    assert traces.get_trace_id() is None


# As a process


class SpanCollector:
    """Records the request lines of exported spans."""

    def __init__(self) -> None:
        self.request_lines: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        (length,) = re.findall(r"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length))
        self.request_lines.append(head.split("\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def test_spans_are_exported_before_shutdown(tmp_path: Path) -> None:
    collector = SpanCollector()
    server = await asyncio.start_server(collector, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    simulator = await start_simulator(service=Service(seed=1))
    traces_section = f'[traces]\nendpoint = "http://127.0.0.1:{port}"'
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url, traces_section))
    try:
        await import_api_keys(build_settings(tmp_path, simulator.url), [LINE])
        async with run_serve(tmp_path) as gateway:
            key = LINE["api_key"]
            head = f"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n"
            await exchange(gateway.port, head.encode())
            assert await gateway.stop() == 0
            (line,) = [entry for entry in gateway.parse_log() if entry["event"] == "request"]
    finally:
        await simulator.stop()
        server.close()
    assert collector.request_lines[0].startswith("POST /v1/traces ")
    assert re.fullmatch("[0-9a-f]{32}", line["trace_id"])


WITHOUT_OPENTELEMETRY = """
import sys
sys.modules["opentelemetry"] = None
from gateway.cli import main
main()
"""


@pytest.mark.parametrize(("command", "code"), [("serve", 2), ("check", 1)])
def test_missing_traces_extra_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    monkeypatch.setattr(
        "tests.processes.build_command", lambda: [sys.executable, "-c", WITHOUT_OPENTELEMETRY]
    )
    traces_section = '[traces]\nendpoint = "http://127.0.0.1:4318"'
    (tmp_path / "gateway.toml").write_text(
        build_configuration("http://127.0.0.1:1", traces_section)
    )
    result = run_installed_command(command, folder=tmp_path)
    assert result.returncode == code
    assert "payout-gateway[traces]" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_gateway_runs_without_the_traces_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.processes.build_command", lambda: [sys.executable, "-c", WITHOUT_OPENTELEMETRY]
    )
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:1"))
    async with run_serve(tmp_path) as gateway:
        assert await gateway.stop() == 0
