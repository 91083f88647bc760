"""Takes the pictures of the README: ``python -m tests.pictures``, with the demo running on its ports."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser import open_browser

FOLDER = Path(__file__).parents[1] / "deploy" / "pictures"
REQUEST = """curl -X POST http://127.0.0.1:8080/v1/batches -d '{"sourceCurrency": "USD", "payments":
[{"recipient": {"id": "R-1234567890abcdef"}, "sourceAmount": "12.50", "memo": "thank you"}]}'"""


def main(console: str = "http://127.0.0.1:8081") -> None:
    FOLDER.mkdir(exist_ok=True)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{console}/")
        page.screenshot(path=FOLDER / "console.png")
        page.goto(f"{console}/explain")
        page.locator("textarea").first.fill(REQUEST)
        page.locator("main form button").first.click()
        page.wait_for_load_state()
        page.screenshot(path=FOLDER / "explain.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
