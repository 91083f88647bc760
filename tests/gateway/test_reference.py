"""The reference pages are up to date and complete."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel
from typing_extensions import is_typeddict

from gateway.config.config_file import SECRET_KEYS
from gateway.config.settings import Settings
from mappings import OPERATIONS, UNLISTED, batch_views, objects
from mappings.effects import Operation
from mappings.fields import FieldTable
from mappings.provenance import FIELD_TABLES, list_documented_current_calls
from tests.reference_pages import PAGES, format_operation_title
from tests.request_examples import EXAMPLE_BODIES

ROOT = Path(__file__).parents[2]
EXAMPLE_TEXT = (ROOT / "deploy" / "gateway.example.toml").read_text("utf-8")


@pytest.mark.parametrize("path", PAGES)
def test_reference_page_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == PAGES[path](), "run `make docs`"


def test_every_field_table_is_documented() -> None:
    values = (*vars(objects).values(), *vars(batch_views).values())
    tables = {value for value in values if isinstance(value, FieldTable)}
    assert tables == set(FIELD_TABLES.values()), "add it to FIELD_TABLES in mappings/provenance.py"


def iter_keys_with_choices(
    model: type[BaseModel], path: str = ""
) -> Iterator[tuple[str, set[str]]]:
    """Yields ``section.key`` of every setting, and its choices if there are any."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        if sections := [kind for kind in kinds if hasattr(kind, "model_fields")]:
            yield from iter_keys_with_choices(sections[0], f"{path}{name}.")
        else:
            yield f"{path}{name}", {word for word in kinds if isinstance(word, str) and word}


def map_example_comments_by_key() -> dict[str, str]:
    comments, section = {}, ""
    for line in EXAMPLE_TEXT.splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1]
        elif assignment := re.fullmatch(r"(?:# )?(\w+) = .+?(?:\s{2,}# (.*))?", line):
            comments[f"{section}.{assignment[1]}"] = assignment[2] or ""
    return comments


def test_example_describes_every_key_and_its_choices() -> None:
    comments = map_example_comments_by_key()
    choices_by_key = dict(iter_keys_with_choices(Settings))
    # Not allowed in the file; the key of their file is.
    secret_keys = {f"{section}.{name}" for section, name in SECRET_KEYS}
    live_keys = {key for key in choices_by_key if not key.startswith("environments.sandbox")}
    assert live_keys - secret_keys <= comments.keys() <= choices_by_key.keys()
    for key in live_keys - secret_keys:
        assert comments[key], key
        named = set(re.findall(r"[\w-]+", comments[key]))
        assert choices_by_key[key] <= named, key


def test_example_sets_every_key_to_its_default() -> None:
    example_settings = tomllib.loads(EXAMPLE_TEXT)
    del example_settings["environments"]
    assert Settings(**example_settings) == Settings()


@pytest.mark.parametrize(
    "operation", [*OPERATIONS, *UNLISTED], ids=lambda listed_operation: listed_operation.name
)
def test_every_operation_is_documented_with_its_calls(operation: Operation) -> None:
    text = (ROOT / "mappings" / "operations.md").read_text("utf-8")
    (row,) = (line for line in text.splitlines() if f" ({operation.name}) |" in line)
    assert f"| `{format_operation_title(operation)}` " in row
    assert operation.exactness_reason in row
    assert operation.assumption in row
    for call in list_documented_current_calls(operation):
        assert call["call"] in row


UNDOCUMENTED_FIELDS = {
    # An alias of a documented field, or the same field of another country.
    "bankRegion", "branch", "iban", "routing", "swiftBic", "governmentId", "primaryCurrency",
    # Fields of a business, of an update, or of a body that is sent back.
    "name", "status", "id",
}  # fmt: skip


@pytest.mark.parametrize(
    "operation",
    [listed_operation for listed_operation in OPERATIONS if listed_operation.body_shape],
    ids=lambda listed_operation: listed_operation.name,
)
def test_documented_request_has_every_accepted_field(
    operation: Operation,
) -> None:
    documented_names = set(iter_names(EXAMPLE_BODIES[operation.name]))
    if operation.name.startswith("update_pay"):
        documented_names |= set(
            iter_names(EXAMPLE_BODIES[operation.name.replace("update", "create")])
        )
    if operation.name.startswith(("update_", "create_payment")):
        documented_names |= set(iter_names(EXAMPLE_BODIES["create_batch"])) | set(
            iter_names(EXAMPLE_BODIES["create_recipient"])
        )
    fields = set(iter_fields(operation.body_shape)) - UNDOCUMENTED_FIELDS
    assert fields - documented_names == set(), "add examples to tests/request_examples.py"


def iter_names(value: Any) -> Iterator[str]:
    for nested in value if isinstance(value, list) else []:
        yield from iter_names(nested)
    for name, nested in value.items() if isinstance(value, Mapping) else []:
        yield name
        yield from iter_names(nested)


def iter_fields(field_type: Any) -> Iterator[str]:
    if is_typeddict(field_type):
        for name, nested_type in get_type_hints(field_type, include_extras=True).items():
            yield name
            yield from iter_fields(nested_type)
    elif get_origin(field_type) is not None:
        for part in get_args(field_type):
            yield from iter_fields(part)
