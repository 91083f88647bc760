"""The requests page: the newest requests, errors by code and field, and the trace of each."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from tests.console import ConsoleClient, ConsoleUnderTest
from tests.gateway.console.test_pages import read_page_text
from tests.payouts import create_recipient
from tests.simulator import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_errors_are_grouped_and_each_request_opens_its_trace(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    name, gateway = f"key-{uuid4().hex[:8]}", console.gateway
    headers = {"X-API-Key": await gateway.import_key(api_key=f"api-{name}", name=name)}
    for number in range(3):
        body = {"sourceCurrency": "USD", "payments": [{"sourceAmount": "1.00"}] * (number + 1)}
        answer = await gateway.request("POST", "/v1/batches", body, headers=headers)
        assert 400 <= answer.status < 500, answer.text
    (error,) = answer.body["errors"][:1]
    assert (await gateway.request("GET", "/v1/profile/balances", headers=headers)).status == 200

    everything = await read_page_text(console_client, f"/requests?key={name}")
    assert "4 requests" in everything
    assert f"demo sandbox {name}" in everything
    errors = everything[everything.index("by code and field") : everything.index("4 requests")]
    assert error["code"] in errors
    assert "payments[].recipient" in errors
    assert " 3 demo 3 " in errors, "one group, whatever the number of the payment"

    page = await console_client.get(f"/requests?key={name}&status=4xx&operation=create_batch")
    assert "3 requests" in page.text
    assert "read_balances</td>" not in page.text
    href = re.search('href="(/trace[?]id=[^"]+)"', page.text)
    assert href
    trace = await read_page_text(console_client, href[1])
    assert f"merchant and key demo sandbox, {name}" in trace
    assert f"response {answer.status} {error['code']}" in trace
    assert "This request changed nothing that is on record." in trace


async def test_request_is_found_by_each_of_its_fields(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    name, gateway = f"key-{uuid4().hex[:8]}", console.gateway
    headers = {"X-API-Key": await gateway.import_key(api_key=f"api-{name}", name=name)}
    payments = [{"sourceAmount": "many"}] * 12 + [{"targetAmount": "x", "memo": 1, "currency": 2}]
    body = {"sourceCurrency": "dollars", "payments": payments}
    answer = await gateway.request("POST", "/v1/batches", body, headers=headers)
    fields = {re.sub(r"\d+", "", error["field"]) for error in answer.body["errors"]}
    assert len(fields) > 3
    for field in fields:
        page = await read_page_text(console_client, f"/requests?key={name}&field={field}")
        assert " 1 request " in page
    assert "No such request" in await read_page_text(
        console_client, f"/requests?key={name}&field=payments[]"
    )


async def test_search_finds_ids_and_keys(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    recipient = await create_recipient(console.gateway)
    text = await read_page_text(console_client, f"/trace?id={recipient}")
    assert "create_recipient, key demo-sandbox" in text
    assert "POST /recipients" in text
    answer = await console_client.get("/trace?id=demo-sandbox")
    assert (answer.status, answer.headers["Location"]) == (303, "/requests?key=demo-sandbox")
    assert (await console_client.get("/trace?id=R-nothing<b>")).status == 404


async def test_red_figures_lead_to_requests(console_client: ConsoleClient) -> None:
    page = await console_client.get("/")
    assert '<a href="/requests?status=5xx">' in page.text
    assert '<a href="/requests?status=4xx">' in page.text


async def test_causes_with_the_same_code_are_apart(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    name, gateway = f"key-{uuid4().hex[:8]}", console.gateway
    headers = {"X-API-Key": await gateway.import_key(api_key=f"api-{name}", name=name)}
    closed = Fault("GET", "/v1/balance", close="before", times=2)  # a read is sent again once
    for fault in (closed, Fault("GET", "/v1/balance", status=200, body=b"<html>")):
        console.simulator.service.faults.append(fault)
        answer = await gateway.request("GET", "/v1/profile/balances", headers=headers)
        assert answer.status == 500
    page = await read_page_text(console_client, f"/requests?key={name}")
    errors = page[page.index("by code and field") : page.index("2 requests")]
    assert errors.count("internal_server_error") == 2
    assert "the response is unreadable" in errors
