"""Checks that libraries use their C extensions, because they fall back to Python silently.

The Python code is several times slower, and aiohttp's Python HTTP parser is less strict too.
"""

from __future__ import annotations

import importlib
import sys

from gateway.config.files import ConfigurationError

_C_EXTENSIONS = {
    "aiohttp": ("aiohttp._http_parser", "AIOHTTP_NO_EXTENSIONS"),
    "multidict": ("multidict._multidict", "MULTIDICT_NO_EXTENSIONS"),
    "yarl": ("yarl._quoting_c", "YARL_NO_EXTENSIONS"),
    "simplejson": ("simplejson._speedups", ""),
}
"""For each library, its C extension and the environment variable that disables it."""


def check_c_extensions() -> None:
    """Raises ConfigurationError with each library that runs without its extension."""
    problems = []
    for library, (extension, variable) in _C_EXTENSIONS.items():
        # The library imports its extension itself, and falls back to Python if it cannot.
        importlib.import_module(library)
        if sys.modules.get(extension) is None:
            unset_hint = f", and unset {variable}" if variable else ""
            problems.append(
                f"{library} runs without its C extensions, which makes every request several times "
                f"slower; install its binary wheel for this platform{unset_hint}"
            )
    if problems:
        raise ConfigurationError(problems)
