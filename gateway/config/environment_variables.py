"""Keys set by environment variables."""

import os
from collections.abc import Collection
from typing import Any

ENVIRONMENT_PREFIX = "PAYOUT_GATEWAY_"


def override_by_variables(document: dict[str, Any], sections: Collection[str]) -> None:
    """Sets the keys that variables name: ``PAYOUT_GATEWAY_SERVER__PORT`` is ``server.port``.

    Every variable with the gateway's prefix and a double underscore names a key; an unknown key is
    an error. Variables without it are ignored: Kubernetes sets some (``PAYOUT_GATEWAY_PORT``) for a
    Service of this name.
    """
    # Sorted: a variable for a part of another one's value, or for a file with it, comes after that.
    for name, value in sorted(os.environ.items()):
        # Deployment tools set optional variables to an empty string.
        if value and (keys := parse_variable_name(name, sections)):
            section = document
            for key in keys[:-1]:
                if not isinstance(section.get(key), dict):
                    section[key] = {}
                section = section[key]
            section[keys[-1]] = value
            # The document's file with the value would take precedence.
            section.pop(f"{keys[-1]}_file", None)


def parse_variable_name(variable: str, sections: Collection[str]) -> list[str] | None:
    """Returns the key that an environment variable names, or None if it is not a setting.

    ``sections`` are the names of all sections.
    """
    name = variable.upper()
    if not name.startswith(ENVIRONMENT_PREFIX):
        return None
    key_text = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    # ``SERVER_PORT`` is a typo of ``SERVER__PORT``, which must not be ignored silently.
    if "__" not in key_text and key_text.partition("_")[0] not in sections:
        return None
    return key_text.split("__")


def find_variable_for_key(key: str) -> str | None:
    """Returns the variable that sets a key, its section, or a part of its value."""
    for name in os.environ:
        set_key = name.upper().removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        is_nested = f"{key}.".startswith(f"{set_key}.") or f"{set_key}.".startswith(f"{key}.")
        if is_nested and name.upper().startswith(ENVIRONMENT_PREFIX):
            return name
    return None


def build_variable_name(section: str, key: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{section}__{key}".upper()
