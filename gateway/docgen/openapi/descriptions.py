"""Descriptions and constraints from the legacy document that types cannot express."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from mappings import legacy

Description = dict[str, Any]

_TABLES = tomllib.loads(
    files("gateway.docgen.openapi").joinpath("descriptions.toml").read_text(encoding="utf-8")
)
FIELDS: Mapping[str, Description] = {
    **{name: {"examples": [example]} for name, example in _TABLES["examples"].items()},
    **_TABLES["fields"],
}
ENUM_VALUES: Mapping[str, list[str]] = _TABLES["enums"]
PARAMETERS: Mapping[str, Description] = _TABLES["parameters"]
SEARCH_DESCRIPTIONS: Mapping[str, str] = _TABLES["searches"]
BODY_CONSTRAINTS: Mapping[str, Description] = _TABLES["bodies"]
ADDITIONAL_STATUSES: Mapping[str, list[int]] = _TABLES["statuses"]

REPLACED_SHAPES: Mapping[str, Any] = {"ListedPayment.recipient": legacy.BatchRecipient}
"""Fields whose real shape differs from the declared one, because a TypedDict cannot express it."""
