"""The OpenAPI document of the legacy interface: valid, complete, and consistent with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from pydantic import TypeAdapter, ValidationError

from mappings import OPERATIONS, UNLISTED, errors, field_types
from tests.openapi_document import FIELDS, SHAPES, TABLES, build_openapi_document
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.request_examples import EXAMPLE_BODIES, EXAMPLE_IDS
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Service

README = Path(__file__).parents[2] / "README.md"
load_document = cache(build_openapi_document)
OPERATIONS_BY_NAME = {
    listed_operation.name: listed_operation for listed_operation in (*OPERATIONS, *UNLISTED)
}


def iter_operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in load_document()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def test_document_is_valid_openapi() -> None:
    validate(load_document())


def test_every_name_in_description_tables_exists_in_shapes() -> None:
    fields = {
        f"{name}.{field}"
        for name, typed_dict in SHAPES.items()
        for field in get_type_hints(typed_dict)
    }
    names = fields | {qualified_name.partition(".")[2] for qualified_name in fields}
    for table in (FIELDS, TABLES["enums"]):
        assert set(table) <= names, set(table) - names
    queries = {
        name
        for operation in OPERATIONS
        for name in (get_type_hints(operation.query_shape) if operation.query_shape else ())
    }
    assert set(TABLES["parameters"]) == queries
    searchable_operations = {
        operation.name
        for operation in OPERATIONS_BY_NAME.values()
        if operation.query_shape and "search" in get_type_hints(operation.query_shape)
    }
    assert searchable_operations <= set(TABLES["searches"]) <= set(OPERATIONS_BY_NAME)
    assert set(TABLES["bodies"]) | set(TABLES["statuses"]) <= set(OPERATIONS_BY_NAME)
    assert set(EXAMPLE_BODIES) == {
        operation.name for operation in OPERATIONS_BY_NAME.values() if operation.body_shape
    }


DOCUMENTED_STATUSES = {
    "create_recipient": "200, 403, 406, 500",
    "read_recipient": "200, 403, 404, 500",
    "update_recipient": "200, 403, 406, 500",
    "delete_recipient": "200, 403, 404, 500",
    "delete_recipients": "200, 403, 404, 500",
    "list_recipients": "200, 403, 500",
    "read_recipient_logs": "200, 403, 404, 500",
    "read_recipient_payments": "200, 403, 404, 500",
    "create_payout_method": "200, 403, 404, 406, 500",
    "read_payout_method": "200, 403, 404, 500",
    "update_payout_method": "200, 403, 404, 406, 500",
    "create_batch": "200, 403, 406, 500",
    "read_batch": "200, 403, 404, 500",
    "update_batch": "200, 403, 404, 406, 500",
    "delete_batch": "200, 403, 404, 406, 500",
    "delete_batches": "200, 403, 404, 406, 500",
    "list_batches": "200, 403, 500",
    "generate_quote": "200, 403, 404, 406, 500",
    "read_batch_summary": "200, 403, 404, 406, 500",
    "start_batch": "200, 403, 404, 500",
    "create_payment": "200, 403, 404, 406, 500",
    "read_payment": "200, 403, 404, 500",
    "update_payment": "200, 403, 404, 500",
    "delete_payment": "200, 403, 404, 406, 500",
    "list_batch_payments": "200, 403, 404, 500",
    "read_balances": "200, 403, 404, 500",
    "read_service_balances": "200, 403, 404, 500",
    "read_wallet_balance": "200, 403, 404, 500",
    "read_country": "200, 404, 500",
}
"""The legacy document's status codes; section 4.6 gives none, and its sample has no key."""


def test_operations_are_those_of_the_documents() -> None:
    assert DOCUMENTED_STATUSES.keys() == {operation.name for operation in OPERATIONS}
    assert f"all {len(OPERATIONS)} operations" in README.read_text("utf-8")


def test_statuses_are_those_of_the_documents() -> None:
    for _method, path, operation in iter_operations():
        name = operation["operationId"]
        if name in {unlisted_operation.name for unlisted_operation in UNLISTED}:
            continue
        documented_statuses = set(DOCUMENTED_STATUSES[name].split(", "))
        described_statuses = set(operation["responses"])
        assert documented_statuses <= described_statuses, name
        body_statuses = {"413", "406"} if "requestBody" in operation else set()
        path_statuses = {"404"} if "{" in path else set()
        # A batch that has started cannot be started: contract, section 5.
        assert described_statuses - documented_statuses <= {
            "429",
            *body_statuses,
            *path_statuses,
            *({"406"} if name == "start_batch" else set()),
        }


def test_each_status_has_its_documented_codes() -> None:
    for name, response in load_document()["components"]["responses"].items():
        schema = response["content"]["application/json"]["schema"]
        codes = schema["properties"]["errors"]["items"]["properties"]["code"]["enum"]
        status = int(name.removeprefix("Failure"))
        expected = [
            code for code, code_status in errors.STATUS_BY_CODE.items() if code_status == status
        ]
        assert codes == (expected or ["invalid_field"])


def test_every_example_matches_its_schema() -> None:
    for _method, _path, operation in iter_operations():
        if body := operation.get("requestBody"):
            content = body["content"]["application/json"]
            schema = {**content["schema"], "components": load_document()["components"]}
            problems = list(OAS31Validator(schema).iter_errors(content["example"]))
            assert not problems, operation["operationId"]


@given(st.one_of(st.from_regex("[0-9.]{1,8}", fullmatch=True), st.text(max_size=6)))
def test_amount_pattern_agrees_with_validation(text: str) -> None:
    """If they differ, a generated client refuses valid amounts or sends invalid ones."""
    schemas = load_document()["components"]["schemas"]
    pattern = schemas["PaymentBody"]["properties"]["sourceAmount"]["pattern"]
    try:
        TypeAdapter(field_types.Amount).validate_python(text)
    except ValidationError:
        assert not re.search(pattern.replace("$", r"\Z"), text)
    else:
        assert re.search(pattern, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(field_types.Country, "US"), (field_types.ShownCurrency, "USD"), (field_types.Email, "ada@example.com"),
     (field_types.Day, "1990-12-10"), (field_types.Ssn, "900000001"), (field_types.Amount, "100.00")],
)  # fmt: skip
def test_example_of_every_field_type_is_valid(kind: Any, text: str) -> None:
    json_schema = TABLES["validators"][get_args(kind)[1].func.__name__]
    assert json_schema["examples"] == [text]
    assert TypeAdapter(kind).validate_python(text) == text
    assert re.search(json_schema.get("pattern", ""), text)


async def test_every_example_body_is_accepted(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        for method, path, operation in iter_operations():
            if body := operation.get("requestBody"):
                ids = await create_objects(gateway)
                text = json.dumps(body["content"]["application/json"]["example"])
                for collection, id_ in ids.items():
                    text = text.replace(EXAMPLE_IDS[collection], id_)
                path_ids = {"id": ids[path.split("/")[1]], "payment": ids["payments"]}
                await request_successfully(
                    gateway, method, path.format(**path_ids), json.loads(text)
                )


async def create_objects(gateway: GatewayUnderTest) -> dict[str, str]:
    recipients = (await request_successfully(gateway, "GET", "/recipients"))["recipients"]
    for recipient in recipients:
        await request_successfully(gateway, "DELETE", f"/recipients/{recipient['id']}")
    recipient = await create_recipient(gateway)
    batch = await create_batch(gateway, recipient, "5.00", "6.00")
    payment, other_payment = await load_payment_ids(gateway, batch)
    ids = {"recipients": recipient, "batches": batch, "payments": payment}
    return ids | {"other payments": other_payment}
