"""The OpenAPI document of the legacy interface: valid, complete, and consistent with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from pydantic import TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from gateway.cli.openapi import openapi
from gateway.docgen.openapi import build_openapi_document, descriptions
from gateway.docgen.openapi.document import _DocumentBuilder
from gateway.docgen.openapi.examples import EXAMPLE_BODIES, EXAMPLE_IDS
from gateway.simulator import Service
from mappings import OPERATIONS, UNLISTED, errors, field_types, geography, legacy
from mappings.effects import Vocabulary
from tests.house import House
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids

OWN = Vocabulary("paypal", "acme", "AcmeTotal", "gravatarUrl")
MADE = _DocumentBuilder(Vocabulary())
DESCRIBED = MADE.build(("https://payouts.example.com",))
OPERATIONS_AND_MORE = {one.name: one for one in (*OPERATIONS, *UNLISTED)}
SCHEMAS = DESCRIBED["components"]["schemas"]


def described() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in DESCRIBED["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def test_it_is_a_valid_openapi_document_in_any_words() -> None:
    validate(DESCRIBED)
    validate(build_openapi_document(OWN, ("https://payouts.example.com",)))


def test_every_operation_is_in_it_once_with_its_key() -> None:
    found = {operation["operationId"]: (method, path) for method, path, operation in described()}
    assert found.keys() == OPERATIONS_AND_MORE.keys()
    assert len(list(described())) == 31
    for name, (method, path) in found.items():
        one = OPERATIONS_AND_MORE[name]
        assert (method, path) == (one.method, re.sub("[<>]", "", one.path))
        keyless = DESCRIBED["paths"][path][method.lower()].get("security") == []
        assert keyless == one.is_keyless
    assert DESCRIBED["security"] == [{"ApiKey": []}]
    assert DESCRIBED["components"]["securitySchemes"]["ApiKey"]["name"] == "X-API-Key"


def test_every_field_of_the_shapes_is_in_it() -> None:
    for name, shape in MADE._schemas.shapes.items():
        fields = set(get_type_hints(shape))
        described = set(SCHEMAS[name]["properties"]) - (
            {"ok"} if name.endswith("Answer") else set()
        )
        assert described == fields, name


def test_every_shape_of_the_legacy_document_is_in_it() -> None:
    shapes = [one for one in vars(legacy).values() if is_typeddict(one)]
    shapes += [geography.Country, geography.Currency]
    queries = {legacy.RecipientsQuery, legacy.SearchQuery, legacy.FilteredQuery, legacy.PageQuery}
    assert {one.__name__ for one in shapes if one not in queries} <= SCHEMAS.keys()


def test_every_parameter_is_in_it() -> None:
    for method, path, operation in described():
        one = OPERATIONS_AND_MORE[operation["operationId"]]
        named = {
            (parameter["in"], parameter["name"]) for parameter in operation.get("parameters", [])
        }
        query = (
            {("query", name) for name in get_type_hints(one.query_shape)}
            if one.query_shape
            else set()
        )
        in_path = {("path", name) for name in re.findall(r"\{(\w+)\}", path)}
        assert named == query | in_path, (method, path)


def test_every_name_in_the_tables_is_a_name_of_the_shapes() -> None:
    shapes = {**MADE._schemas.shapes, "BatchRecipient": legacy.BatchRecipient}
    fields = {
        f"{name}.{field}" for name, shape in shapes.items() for field in get_type_hints(shape)
    }
    names = fields | {one.partition(".")[2] for one in fields}
    for table in (descriptions.FIELDS, descriptions.ENUM_VALUES, descriptions.REPLACED_SHAPES):
        assert set(table) <= names, set(table) - names
    queries = {
        name
        for one in OPERATIONS
        for name in (get_type_hints(one.query_shape) if one.query_shape else ())
    }
    assert set(descriptions.PARAMETERS) == queries
    searched = {
        one.name
        for one in OPERATIONS_AND_MORE.values()
        if one.query_shape and "search" in get_type_hints(one.query_shape)
    }
    assert searched <= set(descriptions.SEARCH_DESCRIPTIONS) <= set(OPERATIONS_AND_MORE)
    assert set(descriptions.BODY_CONSTRAINTS) | set(descriptions.ADDITIONAL_STATUSES) <= set(
        OPERATIONS_AND_MORE
    )
    assert set(EXAMPLE_BODIES) == {
        one.name for one in OPERATIONS_AND_MORE.values() if one.body_shape
    }


SECTION_4 = {
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


def test_the_statuses_are_the_documents_and_those_that_it_gives_for_any_request() -> None:
    for _method, path, operation in described():
        name = operation["operationId"]
        if name in {one.name for one in UNLISTED}:
            continue
        listed = set(SECTION_4[name].split(", "))
        told = set(operation["responses"])
        assert listed <= told, name
        sent = {"413", "406"} if "requestBody" in operation else set()
        named = {"404"} if "{" in path else set()
        # A batch that has started cannot be started: contract, section 5.
        assert told - listed <= {
            "429",
            *sent,
            *named,
            *({"406"} if name == "start_batch" else set()),
        }


def test_each_status_has_the_codes_that_the_document_gives_it() -> None:
    for name, response in DESCRIBED["components"]["responses"].items():
        schema = response["content"]["application/json"]["schema"]
        codes = schema["properties"]["errors"]["items"]["properties"]["code"]["enum"]
        status = int(name.removeprefix("Failure"))
        expected = [code for code, its in errors.STATUS_BY_CODE.items() if its == status]
        assert codes == (expected or ["invalid_field"])


def contents() -> Iterator[tuple[str, dict[str, Any]]]:
    for _method, _path, operation in described():
        if body := operation.get("requestBody"):
            yield f"{operation['operationId']} body", body["content"]["application/json"]
        answer = operation["responses"]["200"]["content"]["application/json"]
        yield f"{operation['operationId']} answer", answer
    for name, response in DESCRIBED["components"]["responses"].items():
        yield name, response["content"]["application/json"]


CONTENTS = dict(contents())


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_every_example_is_an_example_of_its_schema(content: dict[str, Any]) -> None:
    schema = {**content["schema"], "components": DESCRIBED["components"]}
    assert not list(OAS31Validator(schema).iter_errors(content["example"]))


def test_it_is_in_the_configured_words_and_no_others() -> None:
    own = json.dumps(build_openapi_document(OWN, ()))
    for word in ("wallet", "service", "ServiceTotal", "avatarUrl"):
        assert f'"{word}"' not in own
        assert f"/balances/{word}" not in own
    for word in ("paypal", "acme", "AcmeTotal", "gravatarUrl"):
        assert f'"{word}"' in own
    assert "/profile/balances/acme" in own
    assert "/profile/balances/paypal" in own


@settings(deadline=None)
@given(st.one_of(st.from_regex("[0-9.]{1,8}", fullmatch=True), st.text(max_size=6)))
def test_an_amount_is_taken_just_where_its_pattern_says_so(text: str) -> None:
    """If they differ, a generated client refuses valid amounts or sends invalid ones."""
    pattern = SCHEMAS["PaymentBody"]["properties"]["sourceAmount"]["pattern"]
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
def test_the_example_of_every_kind_is_of_that_kind(kind: Any, text: str) -> None:
    said = next(mark.json_schema for mark in get_args(kind)[1:] if hasattr(mark, "json_schema"))
    assert said["examples"] == [text]
    assert TypeAdapter(kind).validate_python(text) == text
    assert re.search(said.get("pattern", ""), text)


async def test_every_example_of_a_body_is_accepted(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        for method, path, operation in described():
            if body := operation.get("requestBody"):
                ids = await _made(house)
                text = json.dumps(body["content"]["application/json"]["example"])
                for collection, id_ in ids.items():
                    text = text.replace(EXAMPLE_IDS[collection], id_)
                named = {"id": ids[path.split("/")[1]], "payment": ids["payments"]}
                await done(house, method, path.format(**named), json.loads(text))


async def _made(house: House) -> dict[str, str]:
    listed = (await done(house, "GET", "/recipients"))["recipients"]
    for one in listed:
        await done(house, "DELETE", f"/recipients/{one['id']}")
    recipient = await make_recipient(house)
    batch = await make_batch(house, recipient, "5.00")
    (payment,) = await payment_ids(house, batch)
    return {"recipients": recipient, "batches": batch, "payments": payment}


async def test_a_running_gateway_has_it_on_its_admin_port(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        async with house.session.get(f"{house.running.admin_url}/openapi.json") as answer:
            told = await answer.json()
        assert told == build_openapi_document(Vocabulary(), (house.running.url,))


def test_the_command_prints_it_with_the_configured_addresses(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[server]\npublic_urls = ["https://a.example", "https://b.example/payouts"]\n')
    told = json.loads(CliRunner().invoke(openapi, ["--config", str(path)]).stdout)
    urls = ["https://a.example/v1", "https://b.example/payouts/v1"]
    assert [one["url"] for one in told["servers"]] == urls


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://localhost:8080/v1"), ("::", "http://localhost:8080/v1"),
     ("::1", "http://[::1]:8080/v1"), ("10.0.0.5", "http://10.0.0.5:8080/v1")],
)  # fmt: skip
def test_without_addresses_it_names_where_the_gateway_listens(
    tmp_path: Path, host: str, url: str
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(f'[server]\nhost = "{host}"\n')
    told = json.loads(CliRunner().invoke(openapi, ["--config", str(path)]).stdout)
    assert [one["url"] for one in told["servers"]] == [url]
