"""A login at the admin port: a cookie that says so, which every process can check.

The cookie holds a number, when it ends, and a keyed digest of both; the key is made of the admin
token, so another token ends every login. The token itself is in no cookie and in no address.
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
"""How long a login lasts."""

FAILED_SECONDS = 1.0
"""How long a wrong token waits for its answer."""

FAILED_AT_ONCE = 4
"""Wrong tokens of one address that wait at the same time; more wait for them."""

_ended: dict[str, int] = {}
"""Cookies whose logins were ended, until they would have ended by themselves. A process that begins has
forgotten them, so that it takes a new admin token to end a stolen login for good."""

_FORM = re.compile(r"(?P<begin>[0-9a-f]{32}\.(?P<until>\d{1,12}))\.(?P<digest>[0-9a-f]{64})")


def is_equal_constant_time(one: str, other: str) -> bool:
    """In a time that does not tell how far they agree."""
    return hmac.compare_digest(
        one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape")
    )


class Throttle:
    """Slows down wrong tokens, by address: nobody else's attempts delay a good one."""

    def __init__(self) -> None:
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fail(self, address: str) -> None:
        """Returns when a wrong token may be answered."""
        name = counted_as(resolve_client_address(address, (), ()))
        turns = self._by_address.setdefault(name, asyncio.Semaphore(FAILED_AT_ONCE))
        async with turns:
            await asyncio.sleep(FAILED_SECONDS)


class Sessions:
    """``token`` is the admin token; without one nobody has to log in."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._key = hmac.digest(token.encode(), b"a login at the console", hashlib.sha256)
        self._clock = clock

    @property
    def are_needed(self) -> bool:
        return bool(self._token)

    def begun_with(self, token: str) -> str | None:
        """The cookie of a login; None where it is not the token."""
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
        """The login of this cookie is over, wherever else the cookie may be."""
        if not self.is_good(cookie):
            return
        now = self._clock()
        for over in [one for one, until in _ended.items() if until <= now]:
            del _ended[over]
        _ended[cookie] = int(cookie.split(".")[1])

    def _digest(self, begin: str) -> str:
        return hmac.digest(self._key, begin.encode(), hashlib.sha256).hex()
