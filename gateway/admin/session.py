"""A login at the admin port: a cookie that says so, which every process can check and none has to keep.

The cookie holds a number, when it ends, and a keyed digest of both; the key is made of the admin
token, so another token ends every login. The token itself is in no cookie and in no address.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

COOKIE = "payout-gateway-console"

SECONDS = 12 * 3600
"""How long a login lasts."""

_FORM = re.compile(r"(?P<begin>[0-9a-f]{32}\.(?P<until>\d{1,12}))\.(?P<digest>[0-9a-f]{64})")


def same(one: str, other: str) -> bool:
    """In a time that does not tell how far they agree."""
    return hmac.compare_digest(
        one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape")
    )


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
        if not self._token or not same(token, self._token):
            return None
        begin = f"{secrets.token_hex(16)}.{int(self._clock()) + SECONDS}"
        return f"{begin}.{self._digest(begin)}"

    def is_good(self, cookie: str) -> bool:
        found = _FORM.fullmatch(cookie)
        if not self._token or found is None:
            return False
        is_ours = same(found["digest"], self._digest(found["begin"]))
        return is_ours and self._clock() < int(found["until"])

    def _digest(self, begin: str) -> str:
        return hmac.digest(self._key, begin.encode(), hashlib.sha256).hex()
