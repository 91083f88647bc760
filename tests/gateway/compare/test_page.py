"""The report's page, in a browser: as it is looked at, filtered, tabbed through and printed."""

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
from tests.gateway.compare.towns import Heard, Said, compared

HOSTILE = '</script></style><img src=x onerror="hacked=1"><script>hacked=1</script>\'"&'

RECIPIENT = {
    "id": "R-aaaa",
    "name": "Ada Lovelace",
    "email": "ada@example.com",
    "status": "active",
    "createdAt": "2026-03-01T10:00:00.000Z",
    "payout": {"method": "bank", "accounts": {"bank": {"accountNum": "****47"}}},
}
PAYMENTS = [
    {"id": f"P-{number}", "sourceAmount": f"{number}0.00", "currency": "USD", "memo": HOSTILE}
    for number in range(1, 16)
]


def control(heard: Heard) -> Any:
    path = heard.target.partition("?")[0]
    if path == "/v1/recipients":
        return {"ok": True, "recipients": [RECIPIENT, {**RECIPIENT, "id": "R-bbbb", "n": 1}]}
    if path == "/v1/payments":
        return {"ok": True, "payments": PAYMENTS}
    return {"ok": True, "recipient": RECIPIENT}


def candidate(heard: Heard) -> Any:
    path = heard.target.partition("?")[0]
    if path == "/v1/recipients":
        changed = {**RECIPIENT, "name": "Ada Lovelaxe", "status": None, "routeType": "ach"}
        del changed["email"]
        other = {**RECIPIENT, "id": "R-bbbb", "n": 1}
        return Said(
            {"ok": True, "recipients": [other, changed]}, headers={"Content-Type": "text/x"}
        )
    if path == "/v1/payments":
        return {"ok": True, "payments": [{**PAYMENTS[0], "sourceAmount": "10.01"}, *PAYMENTS[2:]]}
    if path == "/v1/recipients/R-gone":
        return Said({"ok": False, "errors": [{"code": "not_found", "message": "no"}]}, 404)
    if path == "/v1/recipients/R-dddd":
        return Said(drops=True)
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
title = 'A title <b>with</b> {HOSTILE.replace("'", "")}'
[[steps]]
name = "a write"
request = "POST /v1/recipients"
body = {{ a = 1 }}
"""


async def written(*, show_values: bool) -> str:
    rules = Rules().combine(
        build_rules({"ignore": [{"path": "nowhere", "reason": f"because {HOSTILE}"}]}, "rules.toml")
    )
    done = await compared(
        control, candidate, READS, WRITE, rules=rules, show_values=show_values, measure_noise=True
    )
    assert {one["kind"] for one in done.report["differences"]} == {
        *("status", "header", "missing", "extra", "type", "value", "order")
    }
    return render_report_page(done.report)


async def written_of_equals() -> str:
    same = await compared(lambda _: {"ok": True}, lambda _: {"ok": True}, "GET /v1/recipients")
    return render_report_page(same.report)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, show_values in (("masked", False), ("shown", True)):
        made[name] = folder / f"{name}.html"
        made[name].write_text(asyncio.run(written(show_values=show_values)), encoding="utf-8")
    made["equal"] = folder / "equal.html"
    made["equal"].write_text(asyncio.run(written_of_equals()), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path]) -> Iterator[Browser]:
    """After the pages: Playwright has a loop of its own, and no other may run beside it."""
    assert pages
    with open_browser() as browser:
        yield browser


@pytest.fixture
def told() -> list[str]:
    """What the page's console says, and each address that it asks."""
    return []


DESK: ViewportSize = {"width": 1200, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}


def look(browser: Browser, path: Path, told: list[str] | None = None, **how: Any) -> Page:
    context = browser.new_context(**{"viewport": DESK, **how})
    page = context.new_page()
    page.set_default_timeout(10_000)
    if told is not None:
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: told.append(request.url))
    page.goto(path.as_uri())
    return page


def visible(page: Page, selector: str = ".finding") -> int:
    return page.locator(f"{selector}:visible").count()


@pytest.mark.parametrize("name", ["masked", "shown"])
def test_the_page_asks_for_nothing_but_itself_and_has_no_complaint(
    browser: Browser, pages: dict[str, Path], told: list[str], name: str
) -> None:
    page = look(browser, pages[name], told)
    page.locator("#open").click()
    assert told == [pages[name].as_uri()]
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    assert page.title().startswith("9 differences, in 4 of 5 answers.")


def test_a_script_that_is_not_the_pages_own_would_not_run(
    browser: Browser, pages: dict[str, Path], tmp_path: Path, told: list[str]
) -> None:
    spoiled = tmp_path / "spoiled.html"
    text = pages["masked"].read_text(encoding="utf-8")
    spoiled.write_text(text.replace("<body", "<script>hacked=1</script><body"), encoding="utf-8")
    page = look(browser, spoiled, told)
    assert page.evaluate("typeof hacked") == "undefined"
    assert any("Content Security Policy" in line for line in told)


def test_the_filter_narrows_by_text_kind_and_operation(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    every = visible(page)
    status = page.locator("[role=status]")
    assert (every, status.inner_text()) == (9, "9 differences")
    page.fill("#text", "sourceAmount 10.01")
    assert (visible(page), status.inner_text()) == (1, "1 of 9 differences")
    assert visible(page, ".group") == 1
    page.fill("#text", "no such thing")
    assert (visible(page), visible(page, ".nothing")) == (0, 1)
    page.fill("#text", "")
    page.get_by_label("missing").check()
    assert visible(page) == 2
    page.get_by_label("extra").check()
    assert visible(page) == 3
    page.select_option("#operation", "GET /v1/payments")
    assert visible(page) == 1
    page.get_by_label("missing").uncheck()
    page.get_by_label("extra").uncheck()
    page.select_option("#operation", "")
    assert visible(page) == every


def test_differences_can_be_grouped_by_field_and_back(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    operations = page.locator(".group > h3").all_inner_texts()
    page.get_by_label("by field").check()
    fields = page.locator(".group > h3").all_inner_texts()
    assert "sourceAmount" in fields
    assert fields == sorted(fields, key=str.lower)
    assert visible(page) == 9
    assert "GET /v1/payments" in page.locator("[data-field=sourceAmount] .of").inner_text()
    page.get_by_label("by operation").check()
    assert page.locator(".group > h3").all_inner_texts() == operations
    assert page.locator("[data-field=sourceAmount] .of").is_hidden()


FOCUSED = """() => {
  const one = document.activeElement, seen = one.matches("fieldset input") ? one.nextElementSibling : one;
  const style = getComputedStyle(seen);
  return {what: one.id || one.value || one.tagName.toLowerCase(),
          outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
}"""


def test_everything_can_be_done_by_keyboard_and_the_focus_is_seen(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("missing")
    assert visible(page) == 2
    page.keyboard.press("Escape")
    assert (visible(page), page.input_value("#text")) == (9, "")
    page.keyboard.press("/")
    stops = []
    for _ in range(13):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUSED)
        assert stop["outline"], stop
        stops.append(stop["what"])
    assert stops[:2] == ["operation", "operation"], "the choice of one, then the grouping"
    assert stops[2:9] == ["status", "header", "missing", "extra", "type", "value", "order"]
    assert stops[9:] == ["open", "close", "summary", "summary"]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is True
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is False


def test_a_slash_that_is_typed_into_the_filter_is_a_slash(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    page.keyboard.press("/")
    page.keyboard.type("/v1/payments")
    assert page.input_value("#text") == "/v1/payments"
    assert visible(page) == 2


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
      if (color[3] !== 0) throw new Error("a background that is seen through");
    }
    throw new Error("no background");
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.checkVisibility({visibilityProperty: true})) continue;
    if (one.closest("script, style, option, legend")) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(rgba(style.color)), light(behind(one))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), bold = style.fontWeight >= 700;
    found.push({
      text: walker.currentNode.data.trim().slice(0, 30),
      ratio: (a + 0.05) / (b + 0.05),
      needed: size >= 24 || (bold && size >= 18.66) ? 3 : 4.5,
    });
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_every_text_can_be_read_in_light_and_dark(
    browser: Browser, pages: dict[str, Path], scheme: str, viewport: Any
) -> None:
    page = look(browser, pages["masked"], color_scheme=scheme, viewport=viewport)
    page.get_by_label("by field").check()
    page.get_by_label("value").check()
    found = page.evaluate(CONTRASTS)  # what is chosen looks different
    page.get_by_label("value").uncheck()
    found += page.evaluate(CONTRASTS)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    found += page.evaluate(CONTRASTS)
    assert len(found) > 400
    assert [one for one in found if one["ratio"] < one["needed"]] == []


def test_light_and_dark_are_not_the_same(browser: Browser, pages: dict[str, Path]) -> None:
    papers = {
        look(browser, pages["masked"], color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert len(papers) == 2


def test_what_differs_is_marked_by_more_than_colour(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    page.locator("#open").click()
    lines = page.evaluate(
        "[...document.querySelectorAll('.example mark')].map((one) => getComputedStyle(one).textDecorationLine)"
    )
    assert lines.count("underline") > 5
    signs = page.evaluate(
        "[...document.querySelectorAll('.sides .it th')].map((one) => getComputedStyle(one, '::before').content)"
    )
    assert signs
    assert set(signs) == {'"≠"'}


@pytest.mark.parametrize("viewport", [PHONE, {"width": 700, "height": 900}, DESK])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, pages: dict[str, Path], viewport: Any
) -> None:
    page = look(browser, pages["shown"], viewport=viewport)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_on_paper_everything_is_open_and_the_filter_is_gone(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"])
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".filter").is_hidden()
    assert page.locator(".example:visible").count() == page.locator(".example").count() > 5
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_without_scripts_every_difference_is_there(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = look(browser, pages["masked"], java_script_enabled=False)
    assert page.locator(".filter").is_hidden()
    assert page.locator(".finding:visible").count() == 9
    page.locator("[data-field=sourceAmount] summary").click()
    assert page.locator("[data-field=sourceAmount] .example").first.is_visible()


def test_masked_values_are_not_hidden_in_the_page(pages: dict[str, Path]) -> None:
    masked, shown = (pages[name].read_text(encoding="utf-8") for name in ("masked", "shown"))
    for canary in ("Lovela", "ada@example.com"):
        assert canary not in masked
        assert canary in shown


def test_where_both_are_equal_the_page_says_so(
    browser: Browser, pages: dict[str, Path], told: list[str]
) -> None:
    page = look(browser, pages["equal"], told)
    assert told == [pages["equal"].as_uri()]
    assert "Equal: 1 answer of each side says the same." in page.inner_text("h1")
    assert "No differences found." in page.inner_text("#differences")
    assert page.locator(".filter").count() == 0
