"""The console in a browser: keyboard, small screens, dark theme and content security."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser import open_browser
from tests.console import (
    TOKEN,
    ConsoleUnderTest,
    open_console,
    open_filled_console,
    run_in_other_loop,
)
from tests.gateway.console.test_pages import DEPRECATION, PAGES

PHONE_VIEWPORT = {"width": 360, "height": 740}
DESKTOP_VIEWPORT = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleUnderTest]:
    folder: Path = tmp_path_factory.mktemp("console")
    with run_in_other_loop(
        lambda: open_filled_console(folder, deprecation=DEPRECATION)
    ) as running_console:
        yield running_console


@pytest.fixture(scope="module")
def browser(console: ConsoleUnderTest) -> Iterator[Browser]:
    assert console
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared_page(browser: Browser, console: ConsoleUnderTest) -> Iterator[tuple[Page, list[str]]]:
    """A page, for which the browser starts a process, and what it logs, requests to other hosts included."""
    messages: list[str] = []
    with browser.new_context(base_url=console.url) as context:
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(console.url) else messages.append(request.url)
            ),
        )
        yield page, messages


@pytest.fixture
def page(shared_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page as it is opened; it must log nothing."""
    page, messages = shared_page
    page.set_viewport_size(DESKTOP_VIEWPORT)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="light")
    messages.clear()
    yield page
    assert messages == []


def read_color(page: Page, selector: str, css_property: str) -> list[int]:
    css_color = page.locator(selector).first.evaluate(
        f"element => getComputedStyle(element).{css_property}"
    )
    return parse_color(str(css_color))


def parse_color(css_color: str) -> list[int]:
    return [int(float(part)) for part in re.findall(r"[\d.]+", css_color)[:3]]


def compute_luminance(rgb: list[int]) -> float:
    channels = [part / 255 for part in rgb]
    channels = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    ]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def compute_contrast(foreground: list[int], background: list[int]) -> float:
    lighter, darker = sorted(
        (compute_luminance(foreground), compute_luminance(background)), reverse=True
    )
    return (lighter + 0.05) / (darker + 0.05)


def test_pages_are_labelled_readable_and_fit_a_phone(
    page: Page, shared_page: tuple[Page, list[str]]
) -> None:
    """Only tables scroll sideways. A resource from elsewhere, or against the content security policy, is logged."""
    page.set_viewport_size(PHONE_VIEWPORT)  # type: ignore[arg-type]
    for path in PAGES:
        page.goto(path)
        assert shared_page[1] == [], path
        assert page.locator("h1").count() == 1, path
        labels = "[...document.querySelectorAll('select, textarea, input:not([type=hidden])')]"
        assert page.evaluate(f"{labels}.every((control) => control.labels.length === 1)"), path
        page.evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_VIEWPORT["width"], (
            path
        )
        right_edge_script = "Math.max(...[...document.querySelectorAll('main > *')].map((element) => element.getBoundingClientRect().right))"
        assert page.evaluate(right_edge_script) <= PHONE_VIEWPORT["width"], path
        for is_dark in (False, True):
            page.emulate_media(color_scheme="dark" if is_dark else "light")
            check_contrast(page, path, is_dark=is_dark)


def check_contrast(page: Page, path: str, *, is_dark: bool) -> None:
    background = read_color(page, "body", "backgroundColor")
    assert (compute_luminance(background) < 0.2) == is_dark
    selectors = ["main", "h1", ".fine", "nav a", "main a:not([aria-current])", "footer"]
    # In one call, of which each takes as long as a test of another kind.
    css_colors = page.evaluate(
        "selectors => selectors.map((each) => document.querySelector(each))"
        ".map((element) => element && getComputedStyle(element).color)",
        selectors,
    )
    assert css_colors.count(None) < 3, path
    for selector, css_color in zip(selectors, css_colors, strict=True):
        if css_color:
            contrast = compute_contrast(parse_color(css_color), background)
            assert contrast >= 4.4, (path, selector)


def test_id_of_a_superseded_batch_is_on_one_line(page: Page) -> None:
    page.goto("/writes")
    ids = page.locator("td code, tbody th code")
    assert ids.count() == 2
    heights = {round(id_.evaluate("element => element.offsetHeight")) for id_ in ids.all()}
    assert len(heights) == 1, "one of them is broken into lines"


def test_bars_are_visible_in_dark_theme(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    background = read_color(page, "body", "backgroundColor")
    for kind in ("answered", "refused", "failed"):
        bar_color = page.locator(f"#requests .key.{kind}").evaluate(
            "element => { const canvas = document.createElement('canvas').getContext('2d');"
            " canvas.fillStyle = getComputedStyle(element).backgroundColor; canvas.fillRect(0, 0, 1, 1);"
            " return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); }"
        )
        assert compute_contrast(bar_color, background) >= 3, kind


def press_tab_until_focused(page: Page, target: Locator, max_presses: int = 40) -> None:
    for _ in range(max_presses):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError("it cannot be reached by keyboard")


def test_freeze_by_keyboard_asks_for_confirmation(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press_tab_until_focused(page, page.get_by_role("link", name="Traffic control", exact=True))
    page.keyboard.press("Enter")
    page.wait_for_url("**/switches")
    press_tab_until_focused(page, page.get_by_label("Merchant").first)
    page.keyboard.type("kiosk")
    assert page.evaluate("document.activeElement.value") == "kiosk"
    press_tab_until_focused(page, page.get_by_label("Environment").first)
    page.keyboard.type("live and")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(outline.removesuffix("px")) >= 2
    press_tab_until_focused(page, page.get_by_role("button", name="Freeze…"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/switches/confirm?*")
    expect(page.locator("h1")).to_have_text("Freeze writes of merchant kiosk, live and sandbox?")
    press_tab_until_focused(page, page.get_by_role("link", name="Cancel"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/switches")
    expect(page.get_by_text("No freeze is active.")).to_be_visible()
    page.go_back()
    press_tab_until_focused(page, page.get_by_role("button", name="Freeze", exact=True))
    page.keyboard.press("Enter")
    page.wait_for_url("**/switches?done=freeze")
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator("#freezes")).to_contain_text("merchant kiosk, live and sandbox")
    press_tab_until_focused(page, page.get_by_role("button", name="Unfreeze…"))
    page.keyboard.press("Enter")
    press_tab_until_focused(page, page.get_by_role("button", name="Unfreeze", exact=True))
    page.keyboard.press("Enter")
    page.wait_for_url("**/switches?done=unfreeze")
    expect(page.get_by_text("No freeze is active.")).to_be_visible()
    expect(page.locator("main")).to_contain_text("console, from 127.0.0.1")


def test_explain_leads_from_each_field_to_what_it_becomes(page: Page) -> None:
    page.goto("/explain")
    page.get_by_role("button", name="Explain").click()
    marks = page.locator("[id^=sent-] .mark")
    assert marks.count() > 10
    for mark in marks.all():
        assert page.locator(str(mark.get_attribute("href"))).count() == 1
    for viewport in (DESKTOP_VIEWPORT, PHONE_VIEWPORT):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        mark = page.locator("#sent-5 .mark")
        mark.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#given-5"
        colors = [read_color(page, each, "backgroundColor") for each in ("#given-5", "#given-4")]
        assert colors[0] != colors[1]
        page.go_back()


def test_pages_without_script_show_the_same(browser: Browser, console: ConsoleUnderTest) -> None:
    with browser.new_context(java_script_enabled=False, base_url=console.url) as context:
        page = context.new_page()
        page.goto("/")
        expect(page.locator("#figures")).to_contain_text("In doubt")
        page.goto("/explain")
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#given-1")).to_be_visible()


def test_browser_sends_the_token_with_forms_and_refreshes(browser: Browser, tmp_path: Path) -> None:
    with run_in_other_loop(
        lambda: open_console(tmp_path, server={"admin_token": TOKEN})
    ) as protected_console:
        credentials = {"username": "operator", "password": TOKEN}
        with browser.new_context(
            base_url=protected_console.url, http_credentials=credentials
        ) as context:
            page = context.new_page()
            page.goto("/explain")
            page.get_by_role("button", name="Explain").click()
            expect(page.locator("#given-1")).to_be_visible()


# Last, because the clock of its page stands still from then on.
def test_page_refresh_keeps_open_sections(page: Page) -> None:
    page.clock.install()
    page.goto("/traffic")
    page.locator("#requests summary").click()
    refreshed_at = page.locator("footer time").get_attribute("datetime")
    page.locator("h1").click()
    with page.expect_response("**/traffic"):
        page.clock.run_for(10_500)
    expect(page.locator("footer time")).not_to_have_attribute("datetime", str(refreshed_at))
    expect(page.locator("#requests details")).to_have_attribute("open", "")
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Pause").get_attribute("aria-pressed") == "true"
    stopped_at = page.locator("footer time").get_attribute("datetime")
    page.clock.run_for(30_500)
    assert page.locator("footer time").get_attribute("datetime") == stopped_at
