"""The announced shutdown: headers of every answer, and refusals after the sunset if configured."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from gateway.config.sections import Environment
from gateway.config.settings import Deprecation, Environments
from gateway.http.responses import PassedResponse, build_passthrough_response
from gateway.legacy_api.deprecation import DeprecationNotice
from tests.operator_commands import run_command, write_configuration
from tests.payouts import open_gateway_and_service
from tests.running_gateway import open_gateway
from tests.simulator import Service
from tests.sockets import exchange

ANNOUNCED = {"announced": "2026-11-30", "page": "https://example.com/move"}
LINKS = '<https://example.com/move>; rel="deprecation", <https://example.com/move>; rel="sunset"'


@pytest.mark.parametrize(
    ("announced", "sunset"),
    [
        ("2026-11-30", date(2027, 2, 28)),
        ("2026-01-15", date(2026, 4, 15)),
        ("2027-11-30", date(2028, 2, 29)),
        ("2026-12-31", date(2027, 3, 31)),
    ],
)
def test_sunset_defaults_to_three_months_after_announcement(announced: str, sunset: date) -> None:
    assert Deprecation(announced=announced).sunset_date == sunset


def test_configured_sunset_may_be_sooner() -> None:
    deprecation = Deprecation(announced="2026-11-30", sunset="2026-12-01")
    assert deprecation.sunset_date == date(2026, 12, 1)


@pytest.mark.parametrize(
    "section", [{"announced": "2026-11-30", "sunset": "2026-11-29"}, {"sunset": "2026-11-29"}]
)
def test_sunset_before_announcement_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="sunset"):
        Deprecation(**section)


@pytest.mark.parametrize(
    "request_and_status",
    [
        ("GET", "/v1/recipients", 200),
        ("GET", "/v1/recipients/R-none", 404),
        ("GET", "/v1/nowhere", 404),
        ("POST", "/v1/recipients", 406),
        ("OPTIONS", "/v1/recipients", 200),
        ("GET", "/v1/geography/countries/DE", 200),
    ],
    ids=str,
)
async def test_every_answer_has_deprecation_headers(
    request_and_status: tuple[str, str, int], tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, Service(), deprecation=ANNOUNCED) as (
        gateway,
        simulator,
    ):
        method, path, status = request_and_status
        response = await gateway.request(method, path, {} if method == "POST" else None)
        assert response.status == status
        assert response.headers["Deprecation"] == "@1795996800"
        assert response.headers["Sunset"] == "Sun, 28 Feb 2027 00:00:00 GMT"
        assert (
            response.headers["Link"] == f'<{simulator.url}/v1/>; rel="successor-version", {LINKS}'
        )


async def test_answer_to_unknown_key_has_deprecation_headers(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, "http://127.0.0.1:9", deprecation=ANNOUNCED) as gateway:
        response = await gateway.request("GET", "/v1/recipients", headers={"X-API-Key": "nobody"})
        assert response.status == 403
        assert '<https://example.com/move>; rel="deprecation"' in response.headers["Link"]
        assert '<https://example.com/move>; rel="sunset"' in response.headers["Link"]


@pytest.mark.parametrize(
    "request_bytes", [b"NONSENSE\r\n\r\n", b"BREW /v1/batches HTTP/1.1\r\n\r\n"]
)
async def test_answer_to_malformed_request_has_deprecation_headers(
    request_bytes: bytes, tmp_path: Path
) -> None:
    async with open_gateway(tmp_path, "http://127.0.0.1:9", deprecation=ANNOUNCED) as gateway:
        response = await exchange(gateway.running.port, request_bytes)
        assert response is not None
        assert response.headers["deprecation"] == "@1795996800"
        assert (
            response.headers["link"]
            == f'<http://127.0.0.1:9/v1/>; rel="successor-version", {LINKS}'
        )


def test_forwarded_answer_has_the_configured_deprecation_headers() -> None:
    environments = Environments(sandbox=Environment(base_url="https://service.example"))
    notice = DeprecationNotice(Deprecation(**ANNOUNCED), environments)
    headers = notice.headers_by_environment["sandbox"]
    service_headers = {
        "Deprecation": "@1",
        "Sunset": "Thu, 01 Jan 2026 00:00:00 GMT",
        "Link": "<a>; rel=b",
    }
    response = build_passthrough_response(
        PassedResponse(404, CIMultiDict(service_headers), b"{}"),
        "an-id",
        own_headers=headers,
    )
    assert response.headers.getall("Deprecation") == ["@1795996800"]
    assert response.headers.getall("Sunset") == ["Sun, 28 Feb 2027 00:00:00 GMT"]
    assert response.headers.getall("Link") == ["<a>; rel=b", headers["Link"]]
    response_without_notice = build_passthrough_response(
        PassedResponse(404, CIMultiDict(service_headers), b"{}"), "an-id"
    )
    assert {
        name: response_without_notice.headers[name] for name in service_headers
    } == service_headers


async def test_link_is_omitted_without_a_page(tmp_path: Path) -> None:
    section = {"announced": "2026-11-30"}
    async with open_gateway(tmp_path, "http://127.0.0.1:9", deprecation=section) as gateway:
        response = await gateway.request("GET", "/v1/nowhere")
        assert response.headers["Deprecation"] == "@1795996800"
        assert "Link" not in response.headers


@pytest.mark.parametrize(
    "page",
    ["https://docs.example/move/", "https://docs.example/api/v1", "https://docs.example?id=1"],
)
async def test_page_is_linked_as_configured(page: str, tmp_path: Path) -> None:
    section = {"announced": "2026-11-30", "page": page}
    async with open_gateway(tmp_path, "http://127.0.0.1:9", deprecation=section) as gateway:
        response = await gateway.request("GET", "/v1/nowhere")
        assert f'<{page}>; rel="deprecation", <{page}>; rel="sunset"' in response.headers["Link"]


@pytest.mark.parametrize("page", ["https://docs.example/a>b", "https://docs.example/\u00e9"])
def test_page_that_no_header_can_name_is_refused(page: str) -> None:
    with pytest.raises(ValidationError, match="must be an address such as"):
        Deprecation(announced="2026-11-30", page=page)


async def test_headers_are_omitted_without_announcement(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, "http://127.0.0.1:9") as gateway:
        response = await gateway.request("GET", "/v1/nowhere")
        assert not {"Deprecation", "Sunset", "Link"} & set(response.headers)


async def test_requests_after_sunset_are_refused_if_configured(tmp_path: Path) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    section = {"announced": "2020-01-01", "sunset": yesterday, "after_sunset": "refuse"}
    async with open_gateway_and_service(tmp_path, Service(), deprecation=section) as (
        gateway,
        simulator,
    ):
        response = await gateway.request("GET", "/v1/recipients")
        assert (response.status, response.body["errors"][0]["code"]) == (403, "not_authorized")
        assert f"shut down on {yesterday}" in response.body["errors"][0]["message"]
        assert (await gateway.request("OPTIONS", "/v1/recipients")).status == 200
        assert not simulator.service.list_requests()
        path = "/v1/geography/countries/US"
        assert (await gateway.request("GET", path, headers={"X-API-Key": ""})).status == 403
        write_configuration(tmp_path, simulator.url)
    report = json.loads((await run_command(tmp_path, "report", "usage", "--json")).stdout)
    operations = {key["key"]: key["operations"] for key in report["keys"] if key["key"]}
    ((reported_operation,),) = operations.values()
    assert reported_operation["operation"] == "list_recipients", "operators see who still calls"
    assert reported_operation["refused"] == 1


async def test_requests_after_sunset_are_served_by_default(tmp_path: Path) -> None:
    section = {"announced": "2020-01-01", "sunset": "2020-06-01"}
    async with open_gateway_and_service(tmp_path, Service(), deprecation=section) as (gateway, _):
        response = await gateway.request("GET", "/v1/recipients")
        assert response.status == 200
        assert response.headers["Sunset"] == "Mon, 01 Jun 2020 00:00:00 GMT"


@pytest.mark.parametrize("after_sunset", ["serve", "refuse"])
def test_requests_before_sunset_are_not_refused(after_sunset: str) -> None:
    settings = Deprecation(announced="2026-11-30", after_sunset=after_sunset)
    refusal = DeprecationNotice(
        settings, Environments(live=Environment(base_url="https://service.example"))
    )
    assert refusal.find_sunset_problem(datetime(2027, 2, 27, 23, 59, 59, tzinfo=UTC)) is None
    is_refused = refusal.find_sunset_problem(datetime(2027, 2, 28, tzinfo=UTC)) is not None
    assert is_refused is (after_sunset == "refuse")
