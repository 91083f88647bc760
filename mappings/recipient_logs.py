"""Masks API keys in the logs of a recipient."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mappings.effects import JSON

# Header names are checked too, because keys that have been revoked since can appear in old entries.
_KEY_HEADERS = ("key", "authorization", "token", "secret", "cookie", "signature")

_CREDENTIALS = re.compile(r"(?i)^\s*(bearer|basic|digest|\w*sign)\s+\S")


def mask_api_keys_in_log_entry(
    entry: Mapping[str, JSON], api_keys: tuple[str, ...]
) -> dict[str, JSON]:
    """Returns a log entry with the header values masked that contain an API key."""
    headers = entry.get("headers")
    if not isinstance(headers, dict):
        return dict(entry)
    masked_headers = {
        name: "********" if _is_credential_header(name, value, api_keys) else value
        for name, value in headers.items()
    }
    return {**entry, "headers": masked_headers}


def _is_credential_header(name: str, value: JSON, api_keys: tuple[str, ...]) -> bool:
    text = str(value)
    if any(key in text for key in api_keys if key) or _CREDENTIALS.match(text):
        return True
    return "*" not in text and any(word in name.lower() for word in _KEY_HEADERS)
