"""Request targets of the current interface."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from mappings.current import BALANCE_PATH, SUMMARY_PATH, Endpoint
from mappings.effects import Call, Vocabulary
from mappings.vocabulary import build_current_translator


class TargetBuilder:
    """Builds paths and queries in the configured vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = build_current_translator(vocabulary)
        self._paths = {
            SUMMARY_PATH: vocabulary.current_summary_path,
            BALANCE_PATH: vocabulary.current_balance_path,
        }

    def build(self, call: Call, endpoint: Endpoint) -> str:
        """Builds ``/v1/...`` with its query, percent-encoded."""
        path = f"/v1{call.path}"
        # These two paths are configurable.
        if path_template := self._paths.get(endpoint.path):
            match = endpoint.pattern.fullmatch(call.path)
            path = path_template.format(**(match.groupdict() if match else {}))
        if not call.query:
            return path
        query = self._vocabulary.translate_from_neutral(endpoint.query_shape, dict(call.query))
        # Spaces as ``%20``: a ``+`` is a plus sign to services that decode the query like a path.
        return path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
