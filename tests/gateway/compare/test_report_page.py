"""The HTML report in a browser: layout, contrast and content security."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from gateway.compare.page import render_report_page
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
PHONE_VIEWPORT: ViewportSize = {"width": 360, "height": 740}


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
    assert page.title().startswith("9 differences, in 4 of 5 answers.")


def test_foreign_script_is_blocked(
    browser: Browser, pages: dict[str, Path], tmp_path: Path, console_messages: list[str]
) -> None:
    modified_page_path = tmp_path / "spoiled.html"
    text = pages["masked"].read_text(encoding="utf-8")
    modified_page_path.write_text(
        text.replace("<body", "<script>hacked=1</script><body"), encoding="utf-8"
    )
    page = open_page(browser, modified_page_path, console_messages)
    assert page.evaluate("typeof hacked") == "undefined"
    assert any("Content Security Policy" in line for line in console_messages)


CONTRAST_SCRIPT = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b]
    .map((channel) => channel / 255)
    .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4))
    .reduce((sum, channel, index) => sum + channel * [0.2126, 0.7152, 0.0722][index], 0);
  const backgroundOf = (element) => {
    for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
      const color = rgba(getComputedStyle(ancestor).backgroundColor);
      if (color[3] === 255) return color;
      if (color[3] !== 0) throw new Error("a background that is seen through");
    }
    throw new Error("no background");
  };
  const contrasts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
    if (element.closest("script, style, option, legend")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [luminance(rgba(style.color)), luminance(backgroundOf(element))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), bold = style.fontWeight >= 700;
    contrasts.push({
      text: walker.currentNode.data.trim().slice(0, 30),
      ratio: (a + 0.05) / (b + 0.05),
      needed: size >= 24 || (bold && size >= 18.66) ? 3 : 4.5,
    });
  }
  return contrasts;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP_VIEWPORT, PHONE_VIEWPORT], ids=["desk", "phone"])
def test_text_contrast_is_sufficient_in_light_and_dark(
    browser: Browser, pages: dict[str, Path], scheme: str, viewport: Any
) -> None:
    page = open_page(browser, pages["masked"], color_scheme=scheme, viewport=viewport)
    contrasts = page.evaluate(CONTRAST_SCRIPT)
    page.evaluate(OPEN_ALL_SCRIPT)
    contrasts += page.evaluate(CONTRAST_SCRIPT)
    assert len(contrasts) > 300
    assert [contrast for contrast in contrasts if contrast["ratio"] < contrast["needed"]] == []


@pytest.mark.parametrize(
    "viewport", [PHONE_VIEWPORT, {"width": 700, "height": 900}, DESKTOP_VIEWPORT]
)
def test_page_does_not_overflow_the_screen(
    browser: Browser, pages: dict[str, Path], viewport: Any
) -> None:
    page = open_page(browser, pages["shown"], viewport=viewport)
    page.evaluate(OPEN_ALL_SCRIPT)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


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
    assert "Equal: 1 answer matches." in page.inner_text("h1")
    assert "No differences found." in page.inner_text("#differences")
