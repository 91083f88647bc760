"""The reference pages are up to date and complete."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import is_typeddict

from gateway.config.settings import Settings, load_settings
from gateway.docgen.examples import EXAMPLE_BODIES
from gateway.docgen.reference.configuration import iter_example_assignments, iter_setting_keys
from gateway.docgen.reference.operations import format_operation_title
from gateway.docgen.reference.pages import EXAMPLE_CONFIGURATION, render_reference_pages
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation
from mappings.provenance import list_documented_current_calls

ROOT = Path(__file__).parents[2]
EXAMPLE_TEXT = (ROOT / EXAMPLE_CONFIGURATION).read_text("utf-8")


@pytest.mark.parametrize("path", render_reference_pages(ROOT), ids=lambda path: path.name)
def test_reference_page_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == render_reference_pages(ROOT)[path], "run `make docs`"


def test_every_setting_is_documented_with_meaning_and_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documented_fields = {
        (field.section, field.name): field for field in iter_setting_keys(EXAMPLE_TEXT)
    }
    assert all(documented_field.description for documented_field in documented_fields.values())
    assert {(section, name) for section, name, *_ in iter_example_assignments(EXAMPLE_TEXT)} <= set(
        documented_fields
    )
    port = documented_fields["server", "port"]
    assert (port.default, port.type) == ("8080", "integer, 0 to 65535")
    monkeypatch.setenv(port.variable, "9000")
    assert load_settings(None).server.port == 9000


def test_example_sets_every_key_to_its_default() -> None:
    example_settings = tomllib.loads(EXAMPLE_TEXT)
    del example_settings["environments"]
    assert Settings(**example_settings) == Settings()


@pytest.mark.parametrize(
    "operation", [*OPERATIONS, *UNLISTED], ids=lambda listed_operation: listed_operation.name
)
def test_every_operation_is_documented_with_its_calls(operation: Operation) -> None:
    text = (ROOT / "mappings" / "operations.md").read_text("utf-8")
    _, _, section = text.partition(f"### {format_operation_title(operation)}\n")
    section = section.partition("\n### ")[0]
    assert operation.exactness_reason in section
    assert operation.assumption in section
    for call in list_documented_current_calls(operation):
        assert call["call"] in section


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
    assert set(iter_fields(operation.body_shape)) - UNDOCUMENTED_FIELDS <= documented_names


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
