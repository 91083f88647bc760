"""Encoding of HTTP header blocks, for requests to the service and responses to clients."""

from __future__ import annotations

from collections.abc import Mapping


def encode_header_block(start_line: str, *headers: Mapping[str, str]) -> bytes:
    """Encodes the start line, the headers in their order, and the empty line.

    Raises ValueError if a line break in a value would inject another header.
    """
    lines = list[str]()
    for header_group in headers:
        lines += map(": ".join, header_group.items())
    # Counting line ends in the result finds an injected one in any name or value.
    text = "\r\n".join([start_line, *lines, "", ""])
    line_count = len(lines) + 2
    if text.count("\r") != line_count or text.count("\n") != line_count or "\0" in text:
        raise ValueError("a header would be more than one")
    return text.encode()
