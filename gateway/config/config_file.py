"""The configuration file as text, to find the line of a problem."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from gateway.config.environment_variables import build_variable_name


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that settings were read from; empty without one. It does not affect their equality."""

    path: Path | None = field(default=None, compare=False)
    text: str = field(default="", compare=False)

    def format_problem_with_location(self, key: str, problem: str) -> str:
        """Returns one line: the file and line that set the key, if any, and the problem."""
        line = _find_key_line_number(self.text, key.split("."))
        return (
            f"{self.path}:{line}: {key}: {problem}" if self.path and line else f"{key}: {problem}"
        )

    def find_url_password_problems(self) -> Iterator[str]:
        """Yields a problem for each URL with a password, even if a variable overrides it."""
        document = tomllib.loads(self.text)
        for section in ("state", "limits"):
            url = document.get(section, {}).get("url")
            if isinstance(url, str) and _has_url_password(url):
                problem = (
                    "contains a password, which does not belong in this file; put the URL into a "
                    f"separate file named by url_file, or set {build_variable_name(section, 'url')}"
                )
                yield self.format_problem_with_location(f"{section}.url", problem)


def _find_key_line_number(text: str, keys: list[str]) -> int | None:
    """Returns the line of a key, or of its section if the file does not contain the key."""
    # Searches the text, because tomllib does not report the lines of keys.
    section, section_line = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            section = re.sub(r"[\"' ]", "", header[1])
            line_key = section
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            line_key = re.sub(r"[\"']", "", f"{section}.{assignment[1]}").lstrip(".")
        else:
            continue
        # Also the first of its subsections, such as [environments.live] of `environments`.
        if f"{line_key}.".startswith(f"{'.'.join(keys)}."):
            return number
        if ".".join(keys).startswith(f"{line_key}."):
            section_line = number
    return section_line


def _has_url_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid URL is reported by the code that uses it
        return False
    # PostgreSQL and Redis accept the password in the query too.
    return bool(parts.password or dict(parse_qsl(parts.query)).get("password"))
