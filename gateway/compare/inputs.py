"""Loads input files. Their kind is detected from their content."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gateway.compare.errors import Unusable
from gateway.compare.har import LINES_BEGIN, parse_har, parse_har_lines
from gateway.compare.reads import parse_read_list
from gateway.compare.requests import LOOKS_LIKE_ONE
from gateway.compare.rules import Rules
from gateway.compare.scenario import parse_scenario
from gateway.compare.steps import Input


def load_input(path: Path, rules: Rules) -> Input:
    """Loads an input file; raises InputError."""
    return parse_input(read_input_text(path), str(path), rules)


def read_input_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise Unusable(f"{path}: not UTF-8") from None


def parse_input(text: str, name: str, rules: Rules) -> Input:
    """Detects the kind: JSON is HAR, TOML a scenario, a request line begins a list of reads."""
    if text.partition("\n")[0] == LINES_BEGIN:
        return parse_har(parse_har_lines(text, name), name, rules)
    if text.lstrip().startswith("{"):
        return _har(text, name, rules)
    first = next(
        (line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"), ""
    )
    if not first:
        raise Unusable(f"{name}: the file is empty")
    if LOOKS_LIKE_ONE.match(first):
        return parse_read_list(text, name, rules)
    if re.match(r"""\[|[\w."'-]+\s*=""", first):
        return parse_scenario(text, name, rules)
    raise Unusable(
        f"{name}: neither a scenario (TOML with [[steps]]), recorded traffic (HAR 1.2), "
        "nor a list of reads (GET /v1/…)"
    )


def _har(text: str, name: str, rules: Rules) -> Input:
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        raise Unusable(f"{name}: starts with {{ but is not valid JSON") from None
    log = written.get("log")
    if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
        raise Unusable(f"{name}: JSON, but not HAR 1.2: log.entries is missing")
    return parse_har(written, name, rules)
