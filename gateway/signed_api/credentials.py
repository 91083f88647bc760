"""Parses and verifies the signature of a request (current interface, section 5)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from multidict import CIMultiDictProxy, MultiMapping

if TYPE_CHECKING:
    from gateway.config.settings import CurrentWords

MOST_SECONDS = 30
"""Largest difference, in either direction, between a timestamp and now; 30 is still accepted."""

_ACCESS_KEY = r"(?P<access_key>[!-9;-~]{1,512})"
_SIGNATURE = r"(?P<signature>[0-9a-f]{64})"
"""Lower-case, as documented. The service may refuse upper-case digits, so they are refused here."""

_STAMP = re.compile(r"[0-9]{1,12}")


class Malformed(Exception):
    """Signature headers that do not conform. The message quotes no header value."""


@dataclass(frozen=True, slots=True)
class SignatureHeader:
    """The parsed signature headers. ``stamp`` is the unchanged text, because that is what is signed."""

    access_key: str = field(repr=False)
    signature: str = field(repr=False)
    stamp: str

    def is_fresh(self, now: float) -> bool:
        """Whether the timestamp is close enough to ``now``, in seconds since 1970."""
        return abs(int(now) - int(self.stamp)) <= MOST_SECONDS


def has_scheme(headers: MultiMapping[str], scheme: str) -> bool:
    """Whether an Authorization header has the scheme, with a valid signature or not."""
    given = headers.getall("Authorization", ())
    if not given:
        return False
    words = (value.split(None, 1)[:1] for value in given)
    return any(word and word[0].lower() == scheme.lower() for word in words)


def parse_signature_header(headers: CIMultiDictProxy[str], words: CurrentWords) -> SignatureHeader:
    """Parses the two signature headers; raises MalformedSignature."""
    authorization = _only(headers, "Authorization")
    stamp = _only(headers, words.timestamp_header)
    written = rf"(?i:{re.escape(words.scheme)}) +{_ACCESS_KEY}:{_SIGNATURE}"
    found = re.fullmatch(written, authorization)
    if found is None:
        raise Malformed("Authorization is not the scheme, an access key, a colon and a signature")
    if not _STAMP.fullmatch(stamp):
        raise Malformed("the timestamp is not in whole seconds")
    return SignatureHeader(found["access_key"], found["signature"], stamp)


def _only(headers: CIMultiDictProxy[str], name: str) -> str:
    given = headers.getall(name, [])
    if len(given) != 1:
        # With repeated headers, the service might verify a different one.
        raise Malformed(f"{name} occurs {len(given)} times")
    return given[0]


class Proof:
    """Verifies a signature against several secrets while the body arrives.

    The document leaves open whether the signed path includes the query, so both forms are
    accepted. Takes the same time whichever secret matches, or if none does.
    """

    def __init__(
        self, secrets: Sequence[str], credentials: SignatureHeader, method: str, target: str
    ) -> None:
        self._signature = credentials.signature.encode()
        readings = dict.fromkeys([target.partition("?")[0], target])
        heads = [f"{credentials.stamp}\n{method.upper()}\n{one}\n".encode() for one in readings]
        self._digests = [
            [hmac.new(secret.encode(), head, "sha256") for head in heads] for secret in secrets
        ]

    def add(self, part: bytes) -> None:
        for digests in self._digests:
            for digest in digests:
                digest.update(part)

    def found(self) -> list[bool]:
        """Returns for each secret whether it made the signature; call it after the last body part."""
        self.add(b"\n")
        return [self._is_one(digests) for digests in self._digests]

    def _is_one(self, digests: Sequence[hmac.HMAC]) -> bool:
        # A list, not a generator: comparing all of them takes the same time for every result.
        made = [digest.hexdigest().encode() for digest in digests]
        return any([hmac.compare_digest(one, self._signature) for one in made])  # noqa: C419 - all of them
