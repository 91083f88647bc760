"""Request targets of the current interface."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from mappings.current import BALANCE, SUMMARY, Endpoint
from mappings.grammar import Call, Vocabulary
from mappings.spelling import build_current_spelling


class Targets:
    """Builds paths and queries in the configured vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._spelling = build_current_spelling(vocabulary)
        self._paths = {
            SUMMARY: vocabulary.current_summary_path,
            BALANCE: vocabulary.current_balance_path,
        }

    def of(self, call: Call, endpoint: Endpoint) -> str:
        """Builds ``/v1/...`` with its query, percent-encoded."""
        path = f"/v1{call.path}"
        # These two paths are configurable.
        if own := self._paths.get(endpoint.path):
            found = endpoint.pattern.fullmatch(call.path)
            path = own.format(**(found.groupdict() if found else {}))
        query = self._spelling.outward(endpoint.query, dict(call.query))
        return path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
