"""Request authentication of the current interface (section 5)."""

import hashlib
import hmac
import re
from collections.abc import Mapping

from gateway.simulator.errors import ApiError, Problem
from gateway.simulator.options import ServiceCredentials, ServiceOptions, Vocabulary

MAX_AGE_SECONDS = 30  # In either direction.


def compute_signature(
    secret_key: str, timestamp: str, method: str, target: str, body: bytes
) -> str:
    """Returns the HMAC-SHA256 of the four parts, each followed by LF, in lower-case hexadecimal."""
    # Bytes that are not UTF-8 arrive as lone surrogates: they are signed as sent.
    signed_head = f"{timestamp}\n{method.upper()}\n{target}\n".encode("utf-8", "surrogateescape")
    return hmac.new(secret_key.encode(), signed_head + body + b"\n", hashlib.sha256).hexdigest()


def select_signed_target(raw_target: str, options: ServiceOptions) -> str:
    if options.signed_target == "path-and-query":
        return raw_target
    return raw_target.partition("?")[0]


def authenticate_request(
    credentials_by_access_key: Mapping[str, ServiceCredentials],
    vocabulary: Vocabulary,
    headers: Mapping[str, str],
    *,
    now: float,
    method: str,
    target: str,
    body: bytes,
    max_age_seconds: float,
) -> ServiceCredentials:
    """Returns the credentials that signed the request.

    Raises ApiError `invalid_api_key` for any mistake: the document has no other code for the
    caller, and does not say which one a stale timestamp gets.
    """
    timestamp = headers.get(vocabulary.timestamp_header, "")
    # Compared as written: the document shows the scheme in one spelling only.
    scheme, _, credential = headers.get("Authorization", "").partition(" ")
    access_key, _, signature = credential.partition(":")
    credentials = credentials_by_access_key.get(access_key)
    if scheme == vocabulary.scheme and credentials is not None:
        expected = compute_signature(credentials.secret_key, timestamp, method, target, body)
        is_timestamp = re.fullmatch(r"[0-9]{1,12}", timestamp) is not None
        # As bytes, because compare_digest raises on text that is not ASCII.
        given = signature.encode("utf-8", "surrogateescape")
        is_fresh = is_timestamp and abs(now - int(timestamp)) <= max_age_seconds
        if is_fresh and hmac.compare_digest(expected.encode(), given):
            return credentials
    raise ApiError(Problem("invalid_api_key", "Invalid API key"))
