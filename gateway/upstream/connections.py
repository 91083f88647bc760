"""Connections to a service: how many, how long they are kept, and what is sent on them by itself."""

from __future__ import annotations

import aiohttp

from gateway.config.settings import Settings
from gateway.upstream.send_attempt import SignedRequest

CONNECT_PART = 1 / 5
"""The part of the time for a call that may be spent on one connection's TCP and TLS."""

IDLE_SECONDS = 4
"""Less than the five seconds after which common servers close an idle connection: a write that
meets the closing one is a write of unknown outcome."""


def create_session(settings: Settings, *unset: str) -> aiohttp.ClientSession:
    """Connections of its own, which nobody else's slow answers take; ``unset`` are headers of
    aiohttp's that are not sent.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            limit_per_host=settings.upstream.connections,  # a sandbox that hangs takes none of live's
            keepalive_timeout=IDLE_SECONDS,
        ),
        request_class=SignedRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=settings.upstream.timeout_seconds * CONNECT_PART
        ),
        trust_env=False,
        auto_decompress=False,
        skip_auto_headers=unset,
    )
