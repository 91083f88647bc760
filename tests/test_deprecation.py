"""The announced shutdown: headers of every answer, and refusals after the sunset if configured."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from gateway.config.settings import Deprecation, Environment, Environments
from gateway.http.responses import PassedResponse, build_passthrough_response
from gateway.legacy_api.deprecation import DeprecationNotice
from gateway.simulator import Service
from tests.house import open_house
from tests.payday import open_town
from tests.sockets import heard

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
def test_the_sunset_is_three_months_after_the_announcement(announced: str, sunset: date) -> None:
    assert Deprecation(announced=announced).sunset_date == sunset


def test_a_sunset_of_one_s_own_may_be_sooner() -> None:
    told = Deprecation(announced="2026-11-30", sunset="2026-12-01")
    assert told.sunset_date == date(2026, 12, 1)


@pytest.mark.parametrize(
    "written", [{"announced": "2026-11-30", "sunset": "2026-11-29"}, {"sunset": "2026-11-29"}]
)
def test_a_sunset_before_its_announcement_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="sunset"):
        Deprecation(**written)


@pytest.mark.parametrize(
    "asked",
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
async def test_every_answer_tells_of_it(asked: tuple[str, str, int], tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(), deprecation=ANNOUNCED) as (house, simulator):
        method, path, status = asked
        got = await house.ask(method, path, {} if method == "POST" else None)
        assert got.status == status
        assert got.headers["Deprecation"] == "@1795996800"
        assert got.headers["Sunset"] == "Sun, 28 Feb 2027 00:00:00 GMT"
        assert got.headers["Link"] == f'<{simulator.url}/v1/>; rel="successor-version", {LINKS}'


async def test_without_a_known_key_it_is_told_too_and_a_page_is_linked(tmp_path: Path) -> None:
    async with open_house(tmp_path, "http://127.0.0.1:9", deprecation=ANNOUNCED) as house:
        got = await house.ask("GET", "/v1/recipients", headers={"X-API-Key": "nobody"})
        assert got.status == 403
        assert '<https://example.com/move>; rel="deprecation"' in got.headers["Link"]
        assert '<https://example.com/move>; rel="sunset"' in got.headers["Link"]


@pytest.mark.parametrize("asked", [b"NONSENSE\r\n\r\n", b"BREW /v1/batches HTTP/1.1\r\n\r\n"])
async def test_the_answer_to_what_is_no_request_tells_of_it_too(
    asked: bytes, tmp_path: Path
) -> None:
    async with open_house(tmp_path, "http://127.0.0.1:9", deprecation=ANNOUNCED) as house:
        got = await heard(house.running.port, asked)
        assert got is not None
        assert got.headers["deprecation"] == "@1795996800"
        assert got.headers["link"] == f'<http://127.0.0.1:9/v1/>; rel="successor-version", {LINKS}'


def test_a_forwarded_answer_tells_of_the_end_that_is_announced_here() -> None:
    environments = Environments(sandbox=Environment(base_url="https://service.example"))
    told = DeprecationNotice(Deprecation(**ANNOUNCED), environments).select_headers("sandbox")
    theirs = {"Deprecation": "@1", "Sunset": "Thu, 01 Jan 2026 00:00:00 GMT", "Link": "<a>; rel=b"}
    answer = build_passthrough_response(
        PassedResponse(404, CIMultiDict(theirs), b"{}"), "an-id", deprecation_headers=told
    )
    assert answer.headers.getall("Deprecation") == ["@1795996800"]
    assert answer.headers.getall("Sunset") == ["Sun, 28 Feb 2027 00:00:00 GMT"]
    assert answer.headers.getall("Link") == ["<a>; rel=b", told["Link"]]
    alone = build_passthrough_response(PassedResponse(404, CIMultiDict(theirs), b"{}"), "an-id")
    assert {name: alone.headers[name] for name in theirs} == theirs


async def test_nothing_is_linked_without_a_page(tmp_path: Path) -> None:
    told = {"announced": "2026-11-30"}
    async with open_house(tmp_path, "http://127.0.0.1:9", deprecation=told) as house:
        got = await house.ask("GET", "/v1/nowhere")
        assert got.headers["Deprecation"] == "@1795996800"
        assert "Link" not in got.headers


async def test_where_nothing_is_announced_nothing_is_told(tmp_path: Path) -> None:
    async with open_house(tmp_path, "http://127.0.0.1:9") as house:
        got = await house.ask("GET", "/v1/nowhere")
        assert not {"Deprecation", "Sunset", "Link"} & set(got.headers)


async def test_after_the_sunset_it_is_refused_where_that_is_asked(tmp_path: Path) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    over = {"announced": "2020-01-01", "sunset": yesterday, "after_sunset": "refuse"}
    async with open_town(tmp_path, Service(), deprecation=over) as (house, simulator):
        got = await house.ask("GET", "/v1/recipients")
        assert (got.status, got.body["errors"][0]["code"]) == (403, "not_authorized")
        assert f"shut down on {yesterday}" in got.body["errors"][0]["message"]
        assert (await house.ask("OPTIONS", "/v1/recipients")).status == 200
        assert not simulator.service.calls()


async def test_after_the_sunset_it_is_served_where_nothing_else_is_asked(tmp_path: Path) -> None:
    over = {"announced": "2020-01-01", "sunset": "2020-06-01"}
    async with open_town(tmp_path, Service(), deprecation=over) as (house, _):
        got = await house.ask("GET", "/v1/recipients")
        assert got.status == 200
        assert got.headers["Sunset"] == "Mon, 01 Jun 2020 00:00:00 GMT"


@pytest.mark.parametrize("after", ["serve", "refuse"])
def test_until_the_sunset_nobody_is_refused(after: str) -> None:
    settings = Deprecation(announced="2026-11-30", after_sunset=after)
    end = DeprecationNotice(
        settings, Environments(live=Environment(base_url="https://service.example"))
    )
    assert end.find_refusal(datetime(2027, 2, 27, 23, 59, 59, tzinfo=UTC)) is None
    is_refused = end.find_refusal(datetime(2027, 2, 28, tzinfo=UTC)) is not None
    assert is_refused is (after == "refuse")
