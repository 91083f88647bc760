"""A library without its C extensions is refused, with advice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECK_CODE = "import gateway.server.app; from gateway.config.extensions import check_c_extensions; check_c_extensions()"


def test_no_error_with_all_extensions() -> None:
    assert subprocess.run([sys.executable, "-c", CHECK_CODE], check=False).returncode == 0


@pytest.mark.parametrize("library", ["aiohttp", "multidict", "yarl"])
def test_missing_extension_is_refused(library: str) -> None:
    switch = f"{library.upper()}_NO_EXTENSIONS"
    result = subprocess.run(
        [sys.executable, "-c", CHECK_CODE],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, switch: "1"},
    )
    assert f"ConfigurationError: {library} runs without its C extensions" in result.stderr
    assert switch in result.stderr


def test_missing_simplejson_extension_is_refused() -> None:
    hide_extension = "import sys; sys.modules['simplejson._speedups'] = None; "
    result = subprocess.run(
        [sys.executable, "-c", hide_extension + CHECK_CODE],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "ConfigurationError: simplejson runs without its C extensions" in result.stderr
