"""Responses with status 200 and ``ok: false``: their codes decide whether they are a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.operator_commands import OperatedGateway, open_operated_gateway
from tests.payouts import RECIPIENT_BODY, create_batch, create_recipient, load_payment_ids

WALLET_BODY = {"primary": {"method": "wallet", "currency": "USD"}}
WALLET_BODY |= {"accounts": {"wallet": {"address": "ada@example.com"}}}

# By name: the request, and the path of the call that is its write.
WRITES: dict[str, tuple[str, str, Any, str]] = {
    "create recipient": ("POST", "/v1/recipients", RECIPIENT_BODY, "/v1/recipients"),
    "update recipient": (
        "PATCH",
        "/v1/recipients/{recipient}",
        {"firstName": "Eve"},
        "/v1/recipients/*",
    ),
    "delete recipient": ("DELETE", "/v1/recipients/{recipient}", None, "/v1/recipients/*"),
    "add payout method": (
        "POST",
        "/v1/recipients/{recipient}/payout-methods",
        WALLET_BODY,
        "/v1/recipients/*/accounts",
    ),
    "create batch": ("POST", "/v1/batches", {"sourceCurrency": "USD"}, "/v1/batches"),
    "update batch": ("PATCH", "/v1/batches/{batch}", {"description": "May"}, "/v1/batches/*"),
    "delete batch": ("DELETE", "/v1/batches/{batch}", None, "/v1/batches/*"),
    "quote": ("POST", "/v1/batches/{batch}/generate-quote", None, "/v1/batches/*/generate-quote"),
    "start": (
        "POST",
        "/v1/batches/{batch}/start-processing",
        None,
        "/v1/batches/*/start-processing",
    ),
    "add payment": ("POST", "/v1/batches/{batch}/payments", {}, "/v1/batches/*/payments"),
    "update payment": (
        "PATCH",
        "/v1/batches/{batch}/payments/{payment}",
        {"sourceAmount": "12.00"},
        "/v1/batches/*/payments/*",
    ),
    "delete payment": (
        "DELETE",
        "/v1/batches/{batch}/payments/{payment}",
        None,
        "/v1/batches/*/payments/*",
    ),
}

STATUS_BY_CODE = {
    "invalid_status": 406,
    "invalid_field": 406,
    "empty_field": 406,
    "expired_quote": 406,
    "invalid_api_key": 403,
    "not_authorized": 403,
    "not_found": 404,
    "rate_limit_exceeded": 429,
}


def build_refusal(*codes: str) -> bytes:
    errors = [{"code": code, "message": "No."} for code in codes]
    return json.dumps({"ok": False, "errors": errors}).encode()


async def prepare_request(setup: OperatedGateway, write: str) -> tuple[str, str, Any]:
    """Creates the objects of a request and returns the request."""
    recipient = await create_recipient(setup.gateway)
    batch = await create_batch(setup.gateway, recipient, "10.00")
    (payment,) = await load_payment_ids(setup.gateway, batch)
    method, path, body, _ = WRITES[write]
    if write == "add payment":
        body = {"recipient": {"id": recipient}, "sourceAmount": "11.00"}
    if write == "delete recipient":
        assert (await setup.gateway.request("DELETE", f"/v1/batches/{batch}")).status == 200
    return method, path.format(recipient=recipient, batch=batch, payment=payment), body


@pytest.mark.parametrize("write", WRITES)
async def test_write_is_refused_if_every_code_blames_the_client(write: str, tmp_path: Path) -> None:
    """As in the contract's table, nothing is in doubt, and the same request can be sent again."""
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        request = await prepare_request(setup, write)
        request_body = WRITES[write][3]
        for code, status in STATUS_BY_CODE.items():
            setup.add_fault(
                request[0], request_body, status=200, body=build_refusal(code, code), times=9
            )
            response = await setup.gateway.request(*request)
            setup.service.faults.clear()
            # A batch names its recipients in its body: there not found is an invalid field.
            is_of_the_body = code == "not_found" and write in ("create batch", "add payment")
            expected_answer = (406, "invalid_field") if is_of_the_body else (status, code)
            assert (response.status, response.body["errors"][0]["code"]) == expected_answer, (
                response.text
            )
            assert await setup.list_writes_in_doubt() == []
        response = await setup.gateway.request(*request)
        assert (response.status, "Idempotent-Replayed" in response.headers) == (200, False), (
            response.text
        )


UNPROVEN_BODIES = {
    "no errors": b'{"ok":false}',
    "empty errors": b'{"ok":false,"errors":[]}',
    "internal": build_refusal("internal_server_error"),
    "partner": build_refusal("partner_integration_error"),
    "unknown": build_refusal("teapot"),
    "mixed": build_refusal("invalid_field", "internal_server_error"),
    "an entry without a code": b'{"ok":false,"errors":[{"code":"invalid_field"},"No."]}',
}


@pytest.mark.parametrize("body", UNPROVEN_BODIES.values(), ids=UNPROVEN_BODIES)
@pytest.mark.parametrize("write", ["create recipient", "create batch", "add payment", "start"])
async def test_write_is_in_doubt_if_any_code_proves_nothing(
    write: str, body: bytes, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        request = await prepare_request(setup, write)
        setup.add_fault(request[0], WRITES[write][3], status=200, body=body, executes=True)
        response = await setup.gateway.request(*request)
        assert (response.status, response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert "is unknown" in response.body["errors"][0]["message"]
        assert int(response.headers["Retry-After"]) > 0
        retry_response = await setup.gateway.request(*request)
        assert retry_response.status == 200, retry_response.text
        expected_count = 1 if write.startswith("create") else 0  # one was created for the request
        assert setup.count_calls(request[0], WRITES[write][3]) == expected_count + 1


@pytest.mark.parametrize("code", STATUS_BY_CODE)
async def test_read_is_answered_with_the_error_of_its_code(code: str, tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}"
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=build_refusal(code), times=9)
        response = await setup.gateway.request("GET", path)
        assert (response.status, response.body["errors"][0]["code"]) == (STATUS_BY_CODE[code], code)


@pytest.mark.parametrize("body", UNPROVEN_BODIES.values(), ids=UNPROVEN_BODIES)
async def test_read_without_known_code_is_an_internal_error(body: bytes, tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=body, times=9)
        response = await setup.gateway.request("GET", f"/v1/recipients/{recipient}")
        assert (response.status, response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
