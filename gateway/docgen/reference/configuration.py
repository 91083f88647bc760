"""Every key of the configuration: types and defaults of the settings, meanings of the example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from gateway.config.settings import ENVIRONMENT_PREFIX, SECRETS, Settings
from gateway.docgen.reference.markdown import format_inline_code, format_markdown_table

ABOUT = """# Configuration

<!-- `make docs` writes this page, of gateway/config/settings.py and deploy/gateway.example.toml. -->

TOML, in `gateway.toml` where the command runs or the file that `--config` names. A variable goes before
the file, an empty one is as good as none; a list in a variable has commas. Unknown keys are errors, in
the file and among the variables. `payout-gateway check` says what is wrong, by line and key.
`gateway.example.toml` is a file to start from.

A key that ends in `_file` names a file, relative to the folder that the command runs in. `url_file`,
`admin_token_file` and `proxy_credentials_file` hold what the key without `_file` would.
"""

_ASSIGNMENT = re.compile(r"(?:# )?(?P<key>\w+) = (?P<value>.+?)(?:\s{2,}# (?P<means>.*))?")


@dataclass(frozen=True, slots=True)
class Key:
    """``default`` is None where there is none, and the key has to be given."""

    section: str
    name: str
    type: str
    default: str | None
    means: str

    @property
    def variable(self) -> str:
        return f"{ENVIRONMENT_PREFIX}{self.section}.{self.name}".replace(".", "__").upper()


def render_configuration_page(example: str) -> str:
    found, sections = (
        list(iter_setting_keys(example)),
        dict.fromkeys(one.section for one in iter_setting_keys(example)),
    )
    return "\n".join([ABOUT, *(line for name in sections for line in _section(name, found))])


def _section(name: str, found: list[Key]) -> Iterator[str]:
    yield f"## [{name}]\n"
    rows = [
        [
            format_inline_code(one.name),
            one.type,
            _default(one),
            one.means,
            format_inline_code(one.variable),
        ]
        for one in found
        if one.section == name
    ]
    yield from format_markdown_table(["key", "type", "default", "means", "variable"], rows)


def _default(key: Key) -> str:
    return "has to be given" if key.default is None else format_inline_code(key.default)


def iter_setting_keys(example: str) -> Iterator[Key]:
    """Every key there is, in the order of the settings."""
    means = parse_setting_meanings(example)
    for section, model in _sections(Settings, ""):
        properties = model.model_json_schema()["properties"]
        for name in model.model_fields:
            if name in properties and not _model(model.model_fields[name].annotation):
                told = properties[name]
                meaning = means.get((section, name)) or _of_a_secret(section, name)
                yield Key(section, name, _type(told), _default_of(model, name), meaning)


def _of_a_secret(section: str, name: str) -> str:
    if (section, name) in SECRETS:
        return f"what the file named by `{name}_file` holds; never in `gateway.toml`"
    raise LookupError(f"{section}.{name} has no word in the example configuration")


def _sections(model: type[BaseModel], name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    if name and any(not _model(one.annotation) for one in model.model_fields.values()):
        yield name, model
    for key, field in model.model_fields.items():
        if inner := _model(field.annotation):
            yield from _sections(inner, f"{name}.{key}".lstrip("."))


def _model(annotation: Any) -> type[BaseModel] | None:
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _default_of(model: type[BaseModel], name: str) -> str | None:
    field = model.model_fields[name]
    if field.is_required():
        return None
    if field.default is None:
        return '""' if _is_day(model, name) else ""
    return format_toml_value(field.default)


def _is_day(model: type[BaseModel], name: str) -> bool:
    return "date" in str(model.model_json_schema()["properties"][name])


def format_toml_value(value: Any) -> str:
    """A value as TOML has it."""
    if hasattr(value, "get_secret_value"):
        return '""'
    if isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_toml_value, value))}]"
    return json.dumps(str(value))


_PLAIN = {"string": "text", "boolean": "true or false", "null": ""}
_FORMATS = {"path": "a file", "date": "a day", "password": "secret"}


def _type(told: Mapping[str, Any]) -> str:
    """A JSON schema's type, in words."""
    if "anyOf" in told:
        return " or ".join(dict.fromkeys(filter(None, map(_type, told["anyOf"]))))
    if "const" in told:
        return "" if told["const"] == "" else format_inline_code(json.dumps(told["const"]))
    if "enum" in told:
        return ", ".join(format_inline_code(json.dumps(word)) for word in told["enum"])
    if told["type"] == "array":
        return "list"
    if told["type"] in ("integer", "number"):
        whole = "whole number" if told["type"] == "integer" else "number"
        return f"{whole}{_bounds(told)}"
    return _FORMATS.get(told.get("format", ""), _PLAIN[told["type"]])


def _bounds(told: Mapping[str, Any]) -> str:
    low, most = told.get("minimum"), told.get("maximum")
    if "exclusiveMinimum" in told:
        above = f", above {told['exclusiveMinimum']}"
        return above + (f", at most {most}" if most is not None else "")
    if low is not None and most is not None:
        return f", {low} to {most}"
    return f", {low} or more" if low is not None else ""


def parse_setting_meanings(example: str) -> dict[tuple[str, str], str]:
    """By section and key, what the example says behind it; `live` speaks for both environments."""
    return {
        (section, name): means
        for section, name, _value, means in iter_example_assignments(example)
        for section in _alike(section)
        if means
    }


def _alike(section: str) -> tuple[str, ...]:
    return (section, "environments.sandbox") if section == "environments.live" else (section,)


def iter_example_assignments(example: str) -> Iterator[tuple[str, str, str, str]]:
    """Section, key, value and meaning of each line that sets something, also where commented out."""
    section = ""
    for line in example.splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1]
        elif found := _ASSIGNMENT.fullmatch(line):
            yield section, found["key"], found["value"].strip(), (found["means"] or "").strip()
