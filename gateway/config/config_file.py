"""The configuration file as text, to find the line of a problem."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gateway.config.environment_variables import build_variable_name, find_variable_for_key

SECRET_KEYS = (("server", "admin_token"), ("upstream", "proxy_credentials"))
"""Keys that only a variable or a separate file may set, not the configuration file."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that settings were read from; empty without one. It does not affect their equality."""

    path: Path | None = field(default=None, compare=False)
    text: str = field(default="", compare=False)

    def format_problem_with_location(self, key: str, problem: str) -> str:
        """Returns one line: where the key was set, and the problem."""
        # A variable overrides the file, so that a value from the file cannot be the problem.
        if variable := find_variable_for_key(key):
            return f"environment variable {variable}: {problem}"
        return self._format_problem_with_line(key, problem)

    def _format_problem_with_line(self, key: str, problem: str) -> str:
        line = _find_key_line_number(self.text, key.split("."))
        location = f"{self.path}:{line}: " if self.path and line else ""
        return f"{location}{key}: {problem}"

    def find_secret_problems(self) -> Iterator[str]:
        """Yields a problem for each secret in the file, even if a variable overrides it."""
        for section, key in SECRET_KEYS:
            if self._load_value(section, key) is not None:
                yield self._format_secret_problem(section, key, "is a secret and not allowed")

    def find_url_password_problems(self) -> Iterator[str]:
        """Yields a problem for each URL with a password, even if a variable overrides it."""
        for section in ("state", "limits"):
            url = self._load_value(section, "url")
            if isinstance(url, str) and _has_url_password(url):
                problem = "contains a password, which does not belong"
                yield self._format_secret_problem(section, "url", problem)

    def _load_value(self, section: str, key: str) -> Any:
        values = tomllib.loads(self.text).get(section)
        return values.get(key) if isinstance(values, dict) else None

    def _format_secret_problem(self, section: str, key: str, problem: str) -> str:
        remedy = f"named by {key}_file, or set {build_variable_name(section, key)}"
        return self._format_problem_with_line(
            f"{section}.{key}", f"{problem} in this file; put it into a separate file {remedy}"
        )


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
