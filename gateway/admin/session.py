"""Sessions of the admin port: a signed cookie that every process can verify.

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

from gateway.http.client_address import counted_as, resolve_client_address

COOKIE = "payout-gateway-console"

SECONDS = 12 * 3600
"""Lifetime of a session."""

FAILED_SECONDS = 1.0
"""Delay of the answer to a wrong token."""

FAILED_AT_ONCE = 4
"""Wrong tokens of one address that are delayed in parallel; further ones queue."""

_ended: dict[str, int] = {}
"""Revoked cookies with their expiry, in memory only: after a restart a stolen cookie is valid again
until it expires, unless the admin token is changed."""

_FORM = re.compile(r"(?P<begin>[0-9a-f]{32}\.(?P<until>\d{1,12}))\.(?P<digest>[0-9a-f]{64})")


def is_equal_constant_time(one: str, other: str) -> bool:
    """Compares in constant time, so that timing does not reveal a matching prefix."""
    return hmac.compare_digest(
        one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape")
    )


class Throttle:
    """Delays answers to wrong tokens, by client address. A valid token is never delayed."""

    def __init__(self) -> None:
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fail(self, address: str) -> None:
        """Waits until a wrong token may be answered."""
        name = counted_as(resolve_client_address(address, (), ()))
        turns = self._by_address.setdefault(name, asyncio.Semaphore(FAILED_AT_ONCE))
        async with turns:
            await asyncio.sleep(FAILED_SECONDS)


class Sessions:
    """Creates and verifies session cookies. Without an admin token no login is required."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._key = hmac.digest(token.encode(), b"a login at the console", hashlib.sha256)
        self._clock = clock

    @property
    def are_needed(self) -> bool:
        return bool(self._token)

    def begun_with(self, token: str) -> str | None:
        """Creates a session cookie; None if the token is wrong."""
        if not self._token or not is_equal_constant_time(token, self._token):
            return None
        begin = f"{secrets.token_hex(16)}.{int(self._clock()) + SECONDS}"
        return f"{begin}.{self._digest(begin)}"

    def is_good(self, cookie: str) -> bool:
        found = _FORM.fullmatch(cookie)
        if not self._token or found is None:
            return False
        is_ours = is_equal_constant_time(found["digest"], self._digest(found["begin"]))
        return is_ours and self._clock() < int(found["until"]) and cookie not in _ended

    def end(self, cookie: str) -> None:
        """Revokes a cookie, also copies of it elsewhere."""
        if not self.is_good(cookie):
            return
        now = self._clock()
        for over in [one for one, until in _ended.items() if until <= now]:
            del _ended[over]
        _ended[cookie] = int(cookie.split(".")[1])

    def _digest(self, begin: str) -> str:
        return hmac.digest(self._key, begin.encode(), hashlib.sha256).hex()
