"""Requests that schemathesis generates from the OpenAPI document, valid and invalid.

They go to a real gateway in front of the simulator. Every answer has a status and a shape that the
document describes; no answer is a 5xx. EXAMPLES=1000 sends more (make fuzz); without it, every run
sends the same requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import simplejson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappings import OPERATIONS, UNLISTED
from tests.gateway_in_thread import GatewayInThread, run_gateway_in_thread
from tests.openapi_document import build_openapi_document
from tests.running_gateway import KEY
from tests.simulator import WALLET_FUNDS, Service, ServiceOptions

if TYPE_CHECKING:  # not imported by every process that collects the tests
    from schemathesis import Case
    from schemathesis.schemas import BaseSchema

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
TIMEOUT_SECONDS = 20
"""A longer request counts as hanging, because the service answers immediately."""


def forbid_unknown_fields(described: dict[str, Any]) -> dict[str, Any]:
    """Forbids unknown fields: answers must not have any, and requests seldom need them."""
    for name, schema in described["components"]["schemas"].items():
        if name != "Activity":  # these are passed through unchanged
            schema["additionalProperties"] = schema.get("additionalProperties", False)
    return described


@cache
def load_schema() -> BaseSchema:
    import schemathesis

    config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
    document = forbid_unknown_fields(build_openapi_document())
    return schemathesis.openapi.from_dict(document, config=config)


class CaseClient:
    """Sends the cases with ids of existing objects, because random ids match nothing."""

    def __init__(self, gateway: GatewayInThread) -> None:
        self.url = f"{gateway.url}/v1"
        self.session = requests.Session()
        self.count = 0
        self.ids: dict[str, str] = {}

    def load_ids(self) -> dict[str, str]:
        """Returns ids of a recipient, a batch and a payment, which are new after every 12 cases."""
        if self.count % 12 == 0:
            recipient = self._create("/recipients", RECIPIENT)["recipient"]["id"]
            payments = [{"recipient": {"id": recipient}, "sourceAmount": "5.00"}]
            body = {"sourceCurrency": "USD", "payments": payments}
            batch = self._create("/batches", body)["batch"]["id"]
            payment_response = self.session.get(
                f"{self.url}/batches/{batch}/payments", headers=KEY_HEADERS
            )
            self.ids = {
                "R-": recipient,
                "B-": batch,
                "P-": payment_response.json()["payments"][0]["id"],
            }
        self.count += 1
        return self.ids

    def _create(self, path: str, body: Any) -> Any:
        response = self.session.post(f"{self.url}{path}", json=body, headers=KEY_HEADERS)
        assert response.status_code == 200, response.text
        return response.json()


KEY_HEADERS = {"X-API-Key": KEY["api_key"]}
RECIPIENT = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "address": {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"},
    "payout": {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": "ada@example.com"}},
    },
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[CaseClient]:
    """A client with a gateway for each operation, so that lists stay short."""
    service = Service(
        seed=1, options=ServiceOptions(processing_seconds=0), wallet_balance=WALLET_FUNDS
    )
    with run_gateway_in_thread(
        tmp_path, service, limits={"requests_per_hour": 10_000_000}
    ) as gateway:
        client = CaseClient(gateway)
        yield client
        client.session.close()


def replace_ids(value: Any, ids: dict[str, str]) -> Any:
    """Replaces well-formed ids by ids of existing objects."""
    if isinstance(value, dict):
        return {name: replace_ids(item, ids) for name, item in value.items()}
    if isinstance(value, list):
        return [replace_ids(entry, ids) for entry in value]
    return ids.get(value[:2], value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", [operation.name for operation in (*OPERATIONS, *UNLISTED)])
def test_every_answer_matches_the_openapi_description(name: str, client: CaseClient) -> None:
    from schemathesis import GenerationMode

    operation = load_schema().find_operation_by_id(name)
    generated = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    for strategy, count in (
        *((example, 1) for example in operation.get_strategies_from_examples()),
        (st.one_of(generated), EXAMPLES or 20),
    ):

        @settings(
            max_examples=count,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def check_case(case: Case) -> None:
            check_answer(case, client)

        check_case()
    if EXAMPLES:  # every value of every schema, which takes long
        for case in operation.schema.iter_coverage_cases(
            operation,
            generation_modes=list(GenerationMode),
            generation_config=operation.schema.config.generation,
        ):
            check_answer(case, client)


def check_answer(case: Case, client: CaseClient) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    ids = client.load_ids()
    if client.count % 5:
        case.path_parameters = replace_ids(case.path_parameters, ids)
        case.body = replace_ids(case.body, ids)
    response = case.call(client.url, client.session, headers=KEY_HEADERS, timeout=TIMEOUT_SECONDS)
    applied_checks = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.missing_required_header,
        # Every tenth is sent again without its key and with a wrong one.
        *[checks.ignored_auth] * (client.count % 10 == 0),
    ]
    case.validate_response(response, checks=applied_checks)
    if case.method != "HEAD":
        begins = (
            b'{"ok":true' if response.status_code == 200 else b'{"ok":false,"errors":[{"code":"'
        )
        assert response.content.startswith(begins)
        read = simplejson.loads(response.content, use_decimal=True)
        compact_json = simplejson.dumps(
            read, separators=(",", ":"), ensure_ascii=False, use_decimal=True
        )
        assert response.content == compact_json.encode()
