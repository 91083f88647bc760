"""Targets of signed requests: checks whether they may be forwarded, and parses what they name.

A target is forwarded byte for byte. A path that another server might interpret as a different
path is refused.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from mappings.current import BALANCE, ENDPOINTS, ID, SUMMARY
from mappings.grammar import Vocabulary

_TARGET = re.compile(r"/v1/[!-~]*")
_DISGUISED = re.compile(r"%(?:2[ef]|5c|[01][0-9a-f]|7f|c[01])|\\", re.IGNORECASE)
"""An encoded dot, slash or control character, or the start of its overlong UTF-8; a backslash."""

_LAYERS = 4
"""Nested percent-encodings that are checked; a path with more is an attack and is refused."""

OTHER_WORDS = (
    "profile submerchant onboarding update balances info sandbox direct-debit bank-account "
    "iframe config subscriptions offlinePayments"
)
"""Words of sections 4.1, 4.4 and 4.5 that no operation uses; logs may show them."""


def is_forwardable(target: str) -> bool:
    """Whether a raw target may be forwarded: /v1/, visible ASCII, no fragment, a safe path."""
    return bool(_TARGET.fullmatch(target)) and "#" not in target and _is_plain(_path(target))


def _is_plain(path: str) -> bool:
    """Whether a path has no dot segment and no encoded separator, however often it is decoded."""
    for _ in range(_LAYERS):
        if _DISGUISED.search(path) or any(_is_dots(part) for part in path.split("/")):
            return False
        # Nothing left to decode.
        if path == (path := _decoded(path)):
            return True
    return False


def _is_dots(part: str) -> bool:
    return part.partition(";")[0].strip() in (".", "..")


def _decoded(path: str) -> str:
    # Latin-1 maps each byte to one character, so decoding only shortens the path and terminates.
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1")


def _path(target: str) -> str:
    return target.partition("?")[0]


def names_in(target: str) -> list[str]:
    """Parses the path segments after /v1 as the most lenient service might read them.

    Decoded, without path parameters and without empty segments. Only for deciding what a request
    is about; never sent.
    """
    path = _path(target)
    while (decoded := _decoded(path)) != path:
        path = decoded
    parts = [part.partition(";")[0].strip() for part in path.split("/")]
    return [part for part in parts if part][1:]


def extract_recipient_id(path: str) -> str:
    """Returns the recipient id in a path below /v1; empty if the path names none."""
    parts = names_in(f"/v1{path}")
    return parts[1] if parts[:1] == ["recipients"] and len(parts) > 1 else ""


class PathTemplates:
    """Formats paths for logs: only words of the interface, never ids or other client text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        paths = [one.path for one in ENDPOINTS]
        paths += [vocabulary.current_balance_path, vocabulary.current_summary_path]
        words = {part for path in paths for part in path.split("/") if "{" not in part}
        own = {
            BALANCE: vocabulary.current_balance_path,
            SUMMARY: vocabulary.current_summary_path,
        }
        self._endpoints = [
            (one.method, _pattern(own.get(one.path, f"/v1{one.path}")), one.path)
            for one in ENDPOINTS
        ]
        self.words = frozenset({"v1", *words, *OTHER_WORDS.split()})

    def of(self, target: str) -> str:
        return redact_path(_path(target), self.words)

    def endpoint(self, method: str, target: str) -> str:
        """Finds the path template of a target's endpoint; empty if the document has none."""
        path = _path(target)
        for its_method, pattern, endpoint in self._endpoints:
            if its_method == method and pattern.fullmatch(path):
                return endpoint
        return ""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", lambda _: ID, re.escape(path)))


def redact_path(path: str, words: frozenset[str] | set[str]) -> str:
    """Replaces each path segment that is not one of the words with an ellipsis."""
    # Bounded, because a client chooses the length of the path.
    return "/".join(part if part in words else "…" for part in path.split("/")[:8])
