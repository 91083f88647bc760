"""Keys set by environment variables."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource

ENVIRONMENT_PREFIX = "PAYOUT_GATEWAY_"


class EnvironmentSource(PydanticBaseSettingsSource):
    """Reads ``PAYOUT_GATEWAY_SERVER__PORT`` as ``server.port``.

    Every variable with the gateway's prefix and a double underscore names a key; an unknown key is
    an error. Variables without it are ignored: Kubernetes sets some (``PAYOUT_GATEWAY_PORT``) for a
    Service of this name.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # __call__ reads all variables

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in os.environ.items():
            if keys := parse_variable_name(name, self.settings_cls.model_fields):
                section = values
                for key in keys[:-1]:
                    section = section.setdefault(key, {})
                # Deployment tools set optional variables to an empty string.
                if value:
                    section[keys[-1]] = value
        return values


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
