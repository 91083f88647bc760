"""Runs a headless Chromium for tests of rendered pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# At its start Chromium fetches several lists, which takes long without a network.
QUIET = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

NO_BROWSER = "no Chromium: tests/browser.sh installs one, CHROMIUM names one"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Skips the test if there is no Chromium; fails it if CI is set."""
    with sync_playwright() as playwright:
        path = _find_browser() or playwright.chromium.executable_path
        if not Path(path).exists():
            (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_BROWSER)
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        try:
            yield browser
        finally:
            browser.close()


def _find_browser() -> str | None:
    names = (os.environ.get("CHROMIUM") or NAMES[0], *NAMES)
    return next((path for name in names if (path := shutil.which(name))), None)
