"""The reference pages are up to date and complete."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import is_typeddict

from gateway.config.settings import Settings, load_settings
from gateway.docgen.reference import EXAMPLE_CONFIGURATION, render_reference_pages
from gateway.docgen.reference.configuration import iter_example_assignments, iter_setting_keys
from gateway.docgen.reference.operations import (
    build_example_target,
    explain_example_request,
    format_operation_title,
)
from gateway.docgen.reference.requests import EXAMPLE_REQUESTS
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation

ROOT = Path(__file__).parents[2]
EXAMPLE_TEXT = (ROOT / EXAMPLE_CONFIGURATION).read_text("utf-8")


@pytest.mark.parametrize("path", render_reference_pages(ROOT), ids=lambda path: path.name)
def test_reference_page_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == render_reference_pages(ROOT)[path], "run `make docs`"


def test_every_setting_is_documented_with_meaning_and_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {(field.section, field.name): field for field in iter_setting_keys(EXAMPLE_TEXT)}
    assert all(one.description for one in found.values())
    assert {(section, name) for section, name, *_ in iter_example_assignments(EXAMPLE_TEXT)} <= set(
        found
    )
    port = found["server", "port"]
    assert (port.default, port.type) == ("8080", "integer, 0 to 65535")
    monkeypatch.setenv(port.variable, "9000")
    assert load_settings(None).server.port == 9000


def test_example_sets_every_key_to_its_default() -> None:
    written = tomllib.loads(EXAMPLE_TEXT)
    del written["environments"]
    assert Settings(**written) == Settings()


@pytest.mark.parametrize("operation", [*OPERATIONS, *UNLISTED], ids=lambda one: one.name)
def test_every_operation_is_documented_with_its_calls(operation: Operation) -> None:
    text = (ROOT / "mappings" / "operations.md").read_text("utf-8")
    _, _, told = text.partition(f"### {format_operation_title(operation)}\n")
    told = told.partition("\n### ")[0]
    assert operation.exactness_reason in told
    assert operation.assumption in told
    assert f"{operation.method} {build_example_target(operation)}" in told
    found = explain_example_request(operation)
    assert found.operation is operation
    for call in found.calls:
        assert f"`{call.method} {call.target}`" in told
        assert all(f"| `{field.field}` |" in told for field in call.fields)


UNDOCUMENTED_FIELDS = {
    # An alias of a documented field, or the same field of another country.
    "bankRegion", "branch", "iban", "routing", "swiftBic", "governmentId", "primaryCurrency",
    # Fields of a business, of an update, or of a body that is sent back.
    "name", "status", "id",
}  # fmt: skip


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.body_shape], ids=lambda one: one.name
)
def test_documented_request_has_every_accepted_field(
    operation: Operation,
) -> None:
    there = set(iter_names(EXAMPLE_REQUESTS[operation.name]))
    if operation.name.startswith("update_pay"):
        there |= set(iter_names(EXAMPLE_REQUESTS[operation.name.replace("update", "create")]))
    if operation.name.startswith(("update_", "create_payment")):
        there |= set(iter_names(EXAMPLE_REQUESTS["create_batch"])) | set(
            iter_names(EXAMPLE_REQUESTS["create_recipient"])
        )
    assert set(iter_fields(operation.body_shape)) - UNDOCUMENTED_FIELDS <= there


def iter_names(value: Any) -> Iterator[str]:
    for inner in value if isinstance(value, list) else []:
        yield from iter_names(inner)
    for name, inner in value.items() if isinstance(value, Mapping) else []:
        yield name
        yield from iter_names(inner)


def iter_fields(shape: Any) -> Iterator[str]:
    if is_typeddict(shape):
        for name, inner in get_type_hints(shape, include_extras=True).items():
            yield name
            yield from iter_fields(inner)
    elif get_origin(shape) is not None:
        for part in get_args(shape):
            yield from iter_fields(part)
