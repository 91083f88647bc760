"""Targets of signed requests: checks whether they may be forwarded, and parses what they name.

A target is forwarded byte for byte. A path that another server might interpret as a different
path is refused.
"""

import re
from urllib.parse import unquote_to_bytes

from mappings.current import BALANCE_PATH, ENDPOINTS, ID_PATTERN, SUMMARY_PATH
from mappings.effects import Vocabulary

_TARGET_PATTERN = re.compile(r"/v1/[!-~]*")
_DISGUISED_PATTERN = re.compile(r"%(?:2[ef]|5c|[01][0-9a-f]|7f|c[01])|\\", re.IGNORECASE)
"""An encoded dot, slash or control character, or the start of its overlong UTF-8; a backslash."""

_MAX_DECODINGS = 4
"""Nested percent-encodings that are checked; a path with more is an attack and is refused."""

UNUSED_PATH_WORDS = (
    "profile submerchant onboarding update balances info sandbox direct-debit bank-account "
    "iframe config subscriptions offlinePayments"
)
"""Words of paths that no operation uses (current interface, sections 4.1, 4.4 and 4.5); logs may
show them.
"""


def is_forwardable(target: str) -> bool:
    """Whether a raw target may be forwarded: /v1/, visible ASCII, no fragment, a safe path."""
    return (
        bool(_TARGET_PATTERN.fullmatch(target))
        and "#" not in target
        and _is_safe_path(_extract_path(target))
    )


def _is_safe_path(path: str) -> bool:
    """Whether a path has no dot segment and no encoded separator, however often it is decoded."""
    for _ in range(_MAX_DECODINGS):
        has_dot_segment = any(map(_is_dot_segment, path.split("/")))
        if has_dot_segment or _DISGUISED_PATTERN.search(path):
            return False
        # Nothing left to decode.
        if path == (path := _percent_decode(path)):
            return True
    return False


def _is_dot_segment(part: str) -> bool:
    return part.partition(";")[0].strip() in (".", "..")


def _percent_decode(path: str) -> str:
    # Latin-1 maps each byte to one character, so decoding only shortens the path and terminates.
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1")


def _extract_path(target: str) -> str:
    return target.partition("?")[0]


def parse_path_parts(target: str) -> list[str]:
    """Parses the path segments after /v1 as the most lenient service might read them.

    The segments are decoded, without path parameters and empty segments. They only serve to decide
    what a request is about, and are never sent.
    """
    path = _extract_path(target)
    # Needs no maximum, unlike the check above: each decoding shortens the path, so the loop ends.
    while (decoded_path := _percent_decode(path)) != path:
        path = decoded_path
    parts = [part.partition(";")[0].strip() for part in path.split("/")]
    return [part for part in parts if part][1:]


def extract_recipient_id(path: str) -> str:
    """Returns the recipient id in a path below /v1; empty if the path names none."""
    if plain := _PLAIN_RECIPIENT_PATH.fullmatch(path):
        return plain[1]
    parts = parse_path_parts(f"/v1{path}")
    return parts[1] if parts[:1] == ["recipients"] and len(parts) > 1 else ""


_PLAIN_RECIPIENT_PATH = re.compile(rf"/recipients/({ID_PATTERN})(?:/[A-Za-z0-9/-]*)?")
"""A path that every service reads in the same way, as those of the gateway's own calls."""


class PathTemplates:
    """Formats paths for logs: words of the interface only, never ids or other client text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        paths = [endpoint.path for endpoint in ENDPOINTS]
        paths += [vocabulary.current_balance_path, vocabulary.current_summary_path]
        words = {part for path in paths for part in path.split("/") if "{" not in part}
        configured_paths = {
            BALANCE_PATH: vocabulary.current_balance_path,
            SUMMARY_PATH: vocabulary.current_summary_path,
        }
        self._endpoints = [
            (
                endpoint.method,
                _compile_path_template(configured_paths.get(endpoint.path, f"/v1{endpoint.path}")),
                endpoint.path,
            )
            for endpoint in ENDPOINTS
        ]
        self.words = frozenset({"v1", *words, *UNUSED_PATH_WORDS.split()})

    def redact(self, target: str) -> str:
        return redact_path(_extract_path(target), self.words)

    def find_endpoint_path(self, method: str, target: str) -> str:
        """Finds the path template of a target's endpoint; empty if the document has none."""
        path = _extract_path(target)
        for endpoint_method, pattern, endpoint in self._endpoints:
            if endpoint_method == method and pattern.fullmatch(path):
                return endpoint
        return ""


def _compile_path_template(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", lambda _: ID_PATTERN, re.escape(path)))


def redact_path(path: str, words: frozenset[str] | set[str]) -> str:
    """Replaces each path segment that is not one of the words with an ellipsis."""
    # The length is bounded, because a client chooses the path.
    return "/".join(part if part in words else "…" for part in path.split("/")[:8])
