"""Targets of signed requests: which may go on as they came, and what they name.

What is sent on is what was sent here, byte for byte. A path that another server might read as
another path than it says is not sent at all.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from mappings.current import BALANCE, ENDPOINTS, ID, SUMMARY
from mappings.grammar import Vocabulary

_TARGET = re.compile(r"/v1/[!-~]*")
_DISGUISED = re.compile(r"%(?:2[ef]|5c|[01][0-9a-f]|7f|c[01])|\\", re.IGNORECASE)
"""A dot, a slash, a backslash, a control character, or the beginning of one in overlong UTF-8."""

_LAYERS = 4
"""How often a path may be encoded over; more is an attempt at something."""

OTHER_WORDS = (
    "profile submerchant onboarding update balances info sandbox direct-debit bank-account "
    "iframe config subscriptions offlinePayments"
)
"""Words of section 4.1, 4.4 and 4.5 that no operation here needs; a log may tell them."""


def is_forwardable(target: str) -> bool:
    """Whether a raw target goes on: /v1/, visible ASCII, no fragment, and a plain path."""
    return bool(_TARGET.fullmatch(target)) and "#" not in target and _is_plain(_path(target))


def _is_plain(path: str) -> bool:
    """Nothing in it is a way up or in disguise, however often somebody decodes it."""
    for _ in range(_LAYERS):
        if _DISGUISED.search(path) or any(_is_dots(part) for part in path.split("/")):
            return False
        if path == (path := _decoded(path)):
            return True
    return False


def _is_dots(part: str) -> bool:
    return part.partition(";")[0].strip() in (".", "..")


def _decoded(path: str) -> str:
    """One letter for each byte, so that nothing grows and this comes to an end."""
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1")


def _path(target: str) -> str:
    return target.partition("?")[0]


def names_in(target: str) -> list[str]:
    """The parts of a target's path after /v1, as the most lenient of services might read them.

    To be asked what a request is about, and never to be sent: decoded, without parameters of a
    part, without empty parts.
    """
    path = _path(target)
    while (decoded := _decoded(path)) != path:
        path = decoded
    parts = [part.partition(";")[0].strip() for part in path.split("/")]
    return [part for part in parts if part][1:]


def extract_recipient_id(path: str) -> str:
    """The recipient that a path below /v1 is about; empty where it is about none, or about several."""
    parts = names_in(f"/v1{path}")
    return parts[1] if parts[:1] == ["recipients"] and len(parts) > 1 else ""


class PathTemplates:
    """Paths as a log may tell them: the interface's own words, and nothing else."""

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
        """The path of the endpoint that a target leads to, empty where the document lists none."""
        path = _path(target)
        for its_method, pattern, endpoint in self._endpoints:
            if its_method == method and pattern.fullmatch(path):
                return endpoint
        return ""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", lambda _: ID, re.escape(path)))


def redact_path(path: str, words: frozenset[str] | set[str]) -> str:
    """A path with an ellipsis for every part that is not one of the words."""
    return "/".join(part if part in words else "…" for part in path.split("/")[:8])
