"""A library without its C extensions is refused, with advice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import gateway.server.app; from gateway.config.extensions import check_extensions; check_extensions()"


def test_with_all_of_them_there_is_nothing_to_say() -> None:
    assert subprocess.run([sys.executable, "-c", CODE], check=False).returncode == 0


@pytest.mark.parametrize("library", ["aiohttp", "multidict", "yarl"])
def test_without_one_it_is_refused(library: str) -> None:
    switch = f"{library.upper()}_NO_EXTENSIONS"
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, switch: "1"},
    )
    assert f"Misconfigured: {library} runs without its C extensions" in ended.stderr
    assert switch in ended.stderr


def test_without_simplejson_s_it_is_refused() -> None:
    hidden = "import sys; sys.modules['simplejson._speedups'] = None; "
    ended = subprocess.run(
        [sys.executable, "-c", hidden + CODE], check=False, capture_output=True, text=True
    )
    assert "Misconfigured: simplejson runs without its C extensions" in ended.stderr
