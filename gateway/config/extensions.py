"""The parts of libraries that are written in C: without one of them a library falls back, quietly.

It then does the same in Python, several times slower, and aiohttp's reading of HTTP is less strict too.
"""

from __future__ import annotations

import importlib
import sys

from gateway.config.settings import Misconfigured

_PARTS = {
    "aiohttp": ("aiohttp._http_parser", "AIOHTTP_NO_EXTENSIONS"),
    "multidict": ("multidict._multidict", "MULTIDICT_NO_EXTENSIONS"),
    "yarl": ("yarl._quoting_c", "YARL_NO_EXTENSIONS"),
    "simplejson": ("simplejson._speedups", ""),
}
"""By library: its part in C, and the variable that has it do without."""


def check_extensions() -> None:
    """Raises Misconfigured with each library that does without."""
    problems = []
    for library, (part, switch) in _PARTS.items():
        importlib.import_module(library)
        if sys.modules.get(part) is None:
            unset = f", and unset {switch}" if switch else ""
            problems.append(
                f"{library} runs without its C extensions: it does in Python, several times slower, what "
                f"every request needs; install its binary wheel for this platform{unset}"
            )
    if problems:
        raise Misconfigured(problems)
