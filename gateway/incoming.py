"""What is read of a client's HTTP request: its target, its query, its body, within bounds."""

from __future__ import annotations

import asyncio
import re
import secrets
from urllib.parse import parse_qsl

from aiohttp import web

from gateway import wire
from mappings.errors import TOO_LARGE, ErrorAnswer
from mappings.grammar import JSON, Invalid, Problem

BODY_SECONDS = 30
"""How long a client may take for the next part of its body."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Overlong(Exception):
    """A body over the limit; the rest of it is not read."""

    answer = ErrorAnswer(413, (TOO_LARGE,))


def path_and_query(request: web.BaseRequest) -> tuple[str, str]:
    """The request target as it was sent, nothing decoded; of an absolute one, what follows the host."""
    target = request.raw_path
    if target[:1] != "/":
        target = re.sub(r"^https?://[^/?#]*", "", target, flags=re.IGNORECASE)
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def parameters(query: str) -> dict[str, str]:
    """The query parameters that say something; of one given twice, the first."""
    pairs = parse_qsl(query, keep_blank_values=False, errors="replace")
    return {name: value for name, value in reversed(pairs) if value.strip()}


def request_id(request: web.BaseRequest) -> str:
    """The client's ``X-Request-Id``, or one made here."""
    given = request.headers.get("X-Request-Id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


def refuse_overlong(request: web.BaseRequest, most: int) -> None:
    """Raises Overlong by the length that is declared, before any of it is read."""
    if (request.content_length or 0) > most:
        raise Overlong


async def json_body(request: web.BaseRequest, most: int) -> JSON:
    """The body as values; raises Invalid where it is no JSON, Overlong where it is too large."""
    try:
        return wire.read(await _bytes(request, most))
    except wire.Unreadable as unreadable:
        message = f"The body must be a JSON object: {unreadable}."
        raise Invalid(Problem("invalid_field", message)) from None
    except TimeoutError:
        message = "The body did not arrive in time."
        raise Invalid(Problem("invalid_field", message)) from None
    except (web.RequestPayloadError, ConnectionError):
        message = "The body is not what its headers say, or was cut off."
        raise Invalid(Problem("invalid_field", message)) from None


async def _bytes(request: web.BaseRequest, most: int) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":
        # Only now: whoever has no key, or is over the limit, need not send the body.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # so that the answer itself still counts as not begun
    parts: list[bytes] = []
    size = 0
    while True:
        async with asyncio.timeout(BODY_SECONDS):
            part = await request.content.readany()
        if not part:
            return b"".join(parts)
        size += len(part)
        if size > most:
            raise Overlong
        parts.append(part)
