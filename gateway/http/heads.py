"""The head of an HTTP message, as it is sent: of a request to the service, and of an answer to a client."""

from __future__ import annotations

from collections.abc import Mapping


def encode_header_block(first: str, *headers: Mapping[str, str]) -> bytes:
    """The first line, the headers in their order, and the empty line; ValueError where one would be
    more than one.
    """
    lines = [f"{name}: {value}" for some in headers for name, value in some.items()]
    text = "\r\n".join([first, *lines, "", ""])
    ends = len(lines) + 2
    if text.count("\r") != ends or text.count("\n") != ends or "\0" in text:
        raise ValueError("a header would be more than one")
    return text.encode()
