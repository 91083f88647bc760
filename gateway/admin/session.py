"""Sessions of the admin port: a signed cookie, valid in the process that created it and its workers.

The cookie contains a random number, its expiry, and an HMAC of both. The key is derived from the admin
token, so changing the token ends all sessions. The token itself is in no cookie and no URL.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from gateway.http.client_address import format_address_rate_limit_name, resolve_client_address

COOKIE = "payout-gateway-console"

SESSION_SECONDS = 12 * 3600
"""Lifetime of a session."""

FAILURE_DELAY_SECONDS = 1.0
"""Delay of the answer to a wrong token."""

MAX_PARALLEL_FAILURES = 4
"""Wrong tokens of one address that are delayed in parallel; further ones queue."""

_PROCESS_SECRET = bytearray(secrets.token_bytes(32))
"""Ends all sessions with the process: another one would not know which of them were revoked."""
_revoked: dict[str, int] = {}
"""Revoked cookies with their expiry."""

_COOKIE_FORMAT = re.compile(
    r"(?P<begin>[0-9a-f]{32}\.(?P<until>\d{1,12}))\.(?P<digest>[0-9a-f]{64})"
)


def get_session_secret() -> bytes:
    return bytes(_PROCESS_SECRET)


def adopt_session_secret(secret: bytes) -> None:
    """Makes this worker's sessions valid at its parent, which verifies them."""
    _PROCESS_SECRET[:] = secret


def is_equal_constant_time(left: str, right: str) -> bool:
    """Compares in constant time, so that timing does not reveal a matching prefix."""
    return hmac.compare_digest(
        left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")
    )


class Throttle:
    """Delays answers to wrong tokens, by client address. A valid token is never delayed."""

    def __init__(self) -> None:
        # Weak: an address is forgotten when no answer to it is delayed any more.
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def delay_authentication_failure(self, address: str) -> None:
        """Waits until a wrong token may be answered."""
        # An IPv6 network counts as one address, because a client can choose any address in it.
        address_group = format_address_rate_limit_name(resolve_client_address(address, (), ()))
        semaphore = self._by_address.setdefault(
            address_group, asyncio.Semaphore(MAX_PARALLEL_FAILURES)
        )
        async with semaphore:
            await asyncio.sleep(FAILURE_DELAY_SECONDS)


class Sessions:
    """Creates and verifies session cookies. Without an admin token no login is required."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._key = hmac.digest(token.encode(), _PROCESS_SECRET, hashlib.sha256)
        self._clock = clock

    @property
    def is_login_required(self) -> bool:
        return bool(self._token)

    def log_in(self, token: str) -> str | None:
        """Checks the token. Returns a session cookie; None if the token is wrong."""
        if not self._token or not is_equal_constant_time(token, self._token):
            return None
        payload = f"{secrets.token_hex(16)}.{int(self._clock()) + SESSION_SECONDS}"
        return f"{payload}.{self._compute_hmac(payload)}"

    def is_valid(self, cookie: str) -> bool:
        match = _COOKIE_FORMAT.fullmatch(cookie)
        if not self._token or match is None:
            return False
        is_authentic = is_equal_constant_time(match["digest"], self._compute_hmac(match["begin"]))
        return is_authentic and self._clock() < int(match["until"]) and cookie not in _revoked

    def revoke(self, cookie: str) -> None:
        """Revokes a cookie, also copies of it elsewhere."""
        if not self.is_valid(cookie):
            return
        now = self._clock()
        # Revoking is rare, so this is the moment to forget those that have expired anyway.
        for expired in [
            revoked_cookie for revoked_cookie, until in _revoked.items() if until <= now
        ]:
            del _revoked[expired]
        _revoked[cookie] = int(cookie.split(".")[1])

    def _compute_hmac(self, payload: str) -> str:
        return hmac.digest(self._key, payload.encode(), hashlib.sha256).hex()
