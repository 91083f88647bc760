"""Loads input files. Their kind is detected from their content."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gateway.compare.errors import InputError
from gateway.compare.har import LINES_HEADER, parse_har, parse_har_lines
from gateway.compare.read_list import parse_read_request_list
from gateway.compare.requests import REQUEST_LINE_START
from gateway.compare.rules import Rules
from gateway.compare.scenario import parse_scenario
from gateway.compare.steps import Input


def load_input(path: Path, rules: Rules) -> Input:
    """Loads an input file; raises InputError."""
    return parse_input(read_input_text(path), str(path), rules)


def read_input_text(path: Path) -> str:
    try:
        # Some tools of Windows write a byte order mark.
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8") from None


def parse_input(text: str, name: str, rules: Rules) -> Input:
    """Detects the kind: JSON is HAR, TOML a scenario, a request line begins a list of reads."""
    # Before JSON, because a recording in lines starts with { too but is not one document.
    if text.partition("\n")[0] == LINES_HEADER:
        return parse_har(parse_har_lines(text, name), name, rules)
    # Neither TOML nor a request line can begin with a brace.
    if text.lstrip().startswith("{"):
        return _parse_har_text(text, name, rules)
    first_line = next(
        (line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"), ""
    )
    if not first_line:
        raise InputError(f"{name}: the file is empty")
    if REQUEST_LINE_START.match(first_line):
        return parse_read_request_list(text, name, rules)
    if re.match(r"""\[|[\w."'-]+\s*=""", first_line):
        return parse_scenario(text, name, rules)
    raise InputError(
        f"{name}: neither a scenario (TOML with [[steps]]), recorded traffic (HAR 1.2), "
        "nor a list of reads (GET /v1/…)"
    )


def _parse_har_text(text: str, name: str, rules: Rules) -> Input:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: starts with {{ but is not valid JSON") from None
    log = document.get("log")
    if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
        raise InputError(f"{name}: JSON, but not HAR 1.2: log.entries is missing")
    return parse_har(document, name, rules)
