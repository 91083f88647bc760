"""Connection pools to the services."""

from __future__ import annotations

import aiohttp

from gateway.config.settings import Settings
from gateway.upstream.send_attempt import IDLE_TIMEOUT_SECONDS, SingleSendRequest

CONNECT_TIMEOUT_SHARE = 1 / 5
"""Share of a call's timeout that connecting one socket may take."""


def create_http_session(settings: Settings, *skipped_headers: str) -> aiohttp.ClientSession:
    """Creates a session with its own connection pool.

    Slow responses elsewhere then cannot use up its connections.

    ``skipped_headers`` are default headers of aiohttp that are not sent.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            # Per host, so that a hanging sandbox does not use up the connections to live.
            limit_per_host=settings.upstream.connections,
            keepalive_timeout=IDLE_TIMEOUT_SECONDS,
        ),
        request_class=SingleSendRequest,
        # A cookie set for one merchant would be sent with the calls of another.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            # Each call has its own deadline, which large bodies extend.
            total=None,
            sock_connect=settings.upstream.timeout_seconds * CONNECT_TIMEOUT_SHARE,
        ),
        # Proxies come from the configuration only: a variable of the shell must not redirect
        # payments.
        trust_env=False,
        auto_decompress=False,
        skip_auto_headers=skipped_headers,
    )
