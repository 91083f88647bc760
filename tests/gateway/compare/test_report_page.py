"""The HTML report in a browser: layout, contrast and content security."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from gateway.compare.report import render_report_page
from gateway.compare.rules import Rules, build_rules
from tests.browser import open_browser
from tests.gateway.compare.fake_services import PlannedResponse, ReceivedRequest, run_comparison

HOSTILE_TEXT = '</script></style><img src=x onerror="hacked=1"><script>hacked=1</script>\'"&'

RECIPIENT = {
    "id": "R-aaaa",
    "name": "Ada Lovelace",
    "email": "ada@example.com",
    "status": "active",
    "createdAt": "2026-03-01T10:00:00.000Z",
    "payout": {"method": "bank", "accounts": {"bank": {"accountNum": "****47"}}},
}
PAYMENTS = [
    {"id": f"P-{number}", "sourceAmount": f"{number}0.00", "currency": "USD", "memo": HOSTILE_TEXT}
    for number in range(1, 16)
]


def respond_as_control(received: ReceivedRequest) -> Any:
    path = received.target.partition("?")[0]
    if path == "/v1/recipients":
        return {"ok": True, "recipients": [RECIPIENT, {**RECIPIENT, "id": "R-bbbb", "n": 1}]}
    if path == "/v1/payments":
        return {"ok": True, "payments": PAYMENTS}
    return {"ok": True, "recipient": RECIPIENT}


def respond_as_candidate(received: ReceivedRequest) -> Any:
    path = received.target.partition("?")[0]
    if path == "/v1/recipients":
        changed_recipient = {
            **RECIPIENT,
            "name": "Ada Lovelaxe",
            "status": None,
            "routeType": "ach",
        }
        del changed_recipient["email"]
        other_recipient = {**RECIPIENT, "id": "R-bbbb", "n": 1}
        return PlannedResponse(
            {"ok": True, "recipients": [other_recipient, changed_recipient]},
            headers={"Content-Type": "text/x"},
        )
    if path == "/v1/payments":
        return {"ok": True, "payments": [{**PAYMENTS[0], "sourceAmount": "10.01"}, *PAYMENTS[2:]]}
    if path == "/v1/recipients/R-gone":
        return PlannedResponse(
            {"ok": False, "errors": [{"code": "not_found", "message": "no"}]}, 404
        )
    if path == "/v1/recipients/R-dddd":
        return PlannedResponse(drops_connection=True)
    return {"ok": True, "recipient": RECIPIENT}


READS = """
GET /v1/recipients?page=1
GET /v1/recipients?page=2
GET /v1/payments
GET /v1/recipients/R-aaaa
GET /v1/recipients/R-gone
GET /v1/recipients/R-dddd
"""
WRITE = f"""
title = 'A title <b>with</b> {HOSTILE_TEXT.replace("'", "")}'
[[steps]]
name = "a write"
request = "POST /v1/recipients"
body = {{ a = 1 }}
"""


async def render_page_with_differences(*, show_values: bool) -> str:
    rules = Rules().combine(
        build_rules(
            {"ignore": [{"path": "nowhere", "reason": f"because {HOSTILE_TEXT}"}]}, "rules.toml"
        )
    )
    comparison = await run_comparison(
        respond_as_control,
        respond_as_candidate,
        READS,
        WRITE,
        rules=rules,
        show_values=show_values,
    )
    assert {difference["kind"] for difference in comparison.report["differences"]} == {
        *("status", "header", "missing", "extra", "type", "value", "order")
    }
    return render_report_page(comparison.report)


async def render_page_without_differences() -> str:
    comparison = await run_comparison(
        lambda _: {"ok": True}, lambda _: {"ok": True}, "GET /v1/recipients"
    )
    return render_report_page(comparison.report)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, show_values in (("masked", False), ("shown", True)):
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(
            asyncio.run(render_page_with_differences(show_values=show_values)), encoding="utf-8"
        )
    paths["equal"] = folder / "equal.html"
    paths["equal"].write_text(asyncio.run(render_page_without_differences()), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path]) -> Iterator[Browser]:
    """Open a browser after the pages exist: Playwright runs its own loop and tolerates no other."""
    assert pages
    with open_browser() as browser:
        yield browser


@pytest.fixture
def console_messages() -> list[str]:
    """Messages of the browser console, and every URL that the page requests."""
    return []


DESKTOP_VIEWPORT: ViewportSize = {"width": 1200, "height": 900}


def open_page(
    browser: Browser, path: Path, console_messages: list[str] | None = None, **context_options: Any
) -> Page:
    context = browser.new_context(**{"viewport": DESKTOP_VIEWPORT, **context_options})
    page = context.new_page()
    page.set_default_timeout(10_000)
    if console_messages is not None:
        page.on("console", lambda message: console_messages.append(message.text))
        page.on("pageerror", lambda error: console_messages.append(str(error)))
        page.on("request", lambda request: console_messages.append(request.url))
    page.goto(path.as_uri())
    return page


OPEN_ALL_SCRIPT = "document.querySelectorAll('details').forEach((element) => (element.open = true))"


@pytest.mark.parametrize("name", ["masked", "shown"])
def test_page_loads_nothing_external_and_logs_no_error(
    browser: Browser, pages: dict[str, Path], console_messages: list[str], name: str
) -> None:
    page = open_page(browser, pages[name], console_messages)
    page.evaluate(OPEN_ALL_SCRIPT)
    assert console_messages == [pages[name].as_uri()]
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    assert page.title().startswith("9 differences, in 4 of 5 responses.")


def test_masked_values_are_absent_from_page_source(pages: dict[str, Path]) -> None:
    masked_page, unmasked_page = (
        pages[name].read_text(encoding="utf-8") for name in ("masked", "shown")
    )
    for canary in ("Lovela", "ada@example.com"):
        assert canary not in masked_page
        assert canary in unmasked_page


def test_page_of_equal_sides_says_so(
    browser: Browser, pages: dict[str, Path], console_messages: list[str]
) -> None:
    page = open_page(browser, pages["equal"], console_messages)
    assert console_messages == [pages["equal"].as_uri()]
    assert page.inner_text("h1") == "✓ Equal: 1 response matches."
    assert "No differences found." in page.inner_text("#differences")
