"""The signature of signed requests (current interface, section 5).

Lower-case hexadecimal HMAC-SHA256, keyed with the secret key, of: timestamp, LF, upper-case
method, LF, request path starting with /v1, LF, body, LF.
"""

import hmac
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

SignedTargetForm = Literal["path", "path-and-query"]
"""The signed "request path": the document leaves open whether it includes the query string."""


MAX_PREFIX_CHARACTERS = 8


def extract_displayable_key_prefix(key: str) -> str:
    """Returns the part of an API key or access key that may be shown, at most a quarter of it.

    An access key is not secret, but an operator may have entered the secret key by mistake.
    """
    return key[: min(MAX_PREFIX_CHARACTERS, len(key) // 4)]


SWAPPED_HINT = "access_key and secret_key may be swapped, or secret_key is not complete"
"""For refused credentials that ``look_swapped``; nothing proves it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    merchant: str = field(default="", compare=False)
    """Whose they are, for logs and alerts."""
    keyed: hmac.HMAC = field(init=False, repr=False, compare=False)
    """The prepared HMAC of the secret key."""

    def __post_init__(self) -> None:
        # Prepared once, because every signature uses it.
        keyed = hmac.new(self.secret_key.encode(), digestmod=sha256)
        object.__setattr__(self, "keyed", keyed)

    @property
    def access_key_prefix(self) -> str:
        """What logs and commands show of the access key: nothing if it may be the secret key."""
        return "" if self.look_swapped else extract_displayable_key_prefix(self.access_key)

    @property
    def look_swapped(self) -> bool:
        """Whether each key looks like the other: secrets are longer, and often say what they are.

        Never tried out: a request with the keys exchanged would show the secret key in a header.
        """
        is_named_secret = [
            bool(re.match(r"sk|.*secret", key, re.IGNORECASE))
            for key in (self.access_key, self.secret_key)
        ]
        if any(is_named_secret):
            return is_named_secret == [True, False]
        return len(self.access_key) > len(self.secret_key)


def extract_signed_target(form: SignedTargetForm, target: str) -> str:
    """Returns the part of ``/v1/...?...`` that is signed."""
    return target if form == "path-and-query" else target.partition("?")[0]


def compute_signature(keyed: hmac.HMAC, stamp: int, method: str, target: str, body: bytes) -> str:
    """Signs a request.

    ``stamp`` is in whole seconds since 1970, ``target`` is from ``extract_signed_target``.
    """
    signature = keyed.copy()
    signature.update(f"{stamp}\n{method.upper()}\n{target}\n".encode())
    signature.update(body)
    # The line feed at the end belongs to the signed text also if there is no body (current
    # interface, section 5).
    signature.update(b"\n")
    return signature.hexdigest()
