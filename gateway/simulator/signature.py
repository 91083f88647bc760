"""Request authentication of the current interface (section 5)."""

import hashlib
import hmac
import re
from collections.abc import Mapping

from gateway.simulator.refusals import Problem, Refusal
from gateway.simulator.switches import Key, Switches, Words

MAX_AGE = 30  # In either direction.


def signature_of(secret_key: str, timestamp: str, method: str, target: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of the four parts, each followed by LF, in lower-case hexadecimal."""
    # Bytes that are not UTF-8 arrive as lone surrogates: they are signed as sent.
    head = f"{timestamp}\n{method.upper()}\n{target}\n".encode("utf-8", "surrogateescape")
    return hmac.new(secret_key.encode(), head + body + b"\n", hashlib.sha256).hexdigest()


def signed_part(raw_target: str, switches: Switches) -> str:
    if switches.signed_target == "path-and-query":
        return raw_target
    return raw_target.partition("?")[0]


def caller(
    keys: Mapping[str, Key],
    words: Words,
    headers: Mapping[str, str],
    *,
    now: float,
    method: str,
    target: str,
    body: bytes,
) -> Key:
    """Return the credentials that signed the request.

    Raises ApiError `invalid_api_key` for any mistake: the document has no other code for the
    caller, and does not say which one a stale timestamp gets.
    """
    timestamp = headers.get(words.timestamp_header, "")
    key, signature = _credentials(keys, words, headers.get("Authorization", ""))
    if key is None or not _fresh(timestamp, now):
        raise _refusal()
    expected = signature_of(key.secret_key, timestamp, method, target, body)
    # As bytes, because compare_digest raises on text that is not ASCII.
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape")):
        raise _refusal()
    return key


def _credentials(
    keys: Mapping[str, Key], words: Words, authorization: str
) -> tuple[Key | None, str]:
    scheme, _, pair = authorization.partition(" ")
    access_key, _, signature = pair.partition(":")
    return (keys.get(access_key) if scheme == words.scheme else None), signature


def _fresh(timestamp: str, now: float) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,12}", timestamp)) and abs(now - int(timestamp)) <= MAX_AGE


def _refusal() -> Refusal:
    return Refusal(Problem("invalid_api_key", "Invalid API key"))
