import asyncio

import aiohttp
import pytest

from gateway.simulator import Fault

RECIPIENT_BODY = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}


async def count_recipients(client):
    return len(client.service.find_or_create_tenant().recipients)


async def test_fault_can_replace_execution(client):
    client.simulator.inject_fault(
        Fault(
            "POST",
            "/v1/recipients",
            status=502,
            body=b"<html>",
            headers={"Content-Type": "text/html"},
        )
    )
    answer = await client.call("POST", "/v1/recipients", RECIPIENT_BODY)
    assert (answer.status, answer.text) == (502, "<html>")
    assert answer.headers["Content-Type"] == "text/html"
    assert await count_recipients(client) == 0
    assert (await client.call("POST", "/v1/recipients", RECIPIENT_BODY)).status == 200


async def test_fault_can_replace_answer_after_execution(client):
    client.simulator.inject_fault(Fault("POST", "*", status=200, body=b'{"ok":tr', executes=True))
    answer = await client.call("POST", "/v1/recipients", RECIPIENT_BODY)
    assert (answer.status, answer.text) == (200, '{"ok":tr')
    assert await count_recipients(client) == 1


@pytest.mark.parametrize(("close_time", "recipients"), [("before", 0), ("after", 1)])
async def test_fault_can_close_connection(client, close_time, recipients):
    client.simulator.inject_fault(Fault("POST", "/v1/recipients", close=close_time))
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.call("POST", "/v1/recipients", RECIPIENT_BODY)
    assert await count_recipients(client) == recipients
    assert [request.status for request in client.service.requests] == [None]


@pytest.mark.parametrize(("delay_option", "recipients"), [("delay", 0), ("answer_delay", 1)])
async def test_fault_can_delay_before_or_after_execution(client, delay_option, recipients):
    client.simulator.inject_fault(Fault("POST", "*", **{delay_option: 0.2}))
    call = asyncio.create_task(client.call("POST", "/v1/recipients", RECIPIENT_BODY))
    await asyncio.sleep(0.1)
    assert await count_recipients(client) == recipients
    assert (await call).status == 200
    assert await count_recipients(client) == 1


async def test_received_request_is_executed_after_client_disconnects(client):
    client.simulator.inject_fault(Fault("POST", "*", delay=0.1))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.call("POST", "/v1/recipients", RECIPIENT_BODY), 0.05)
    await asyncio.sleep(0.2)
    assert await count_recipients(client) == 1


async def test_fault_applies_to_its_method_and_path_a_given_number_of_times(client):
    client.simulator.inject_fault(Fault("GET", "/v1/recipients/*", status=500, body=b"{}", times=2))
    client.simulator.inject_fault(Fault("*", "/v1/recipients/*/logs", status=503))
    assert (await client.call("GET", "/v1/recipients")).status == 200
    assert (await client.call("GET", "/v1/recipients/R-1/payments")).status == 404
    assert (await client.call("DELETE", "/v1/recipients/R-1")).status == 404
    statuses = [(await client.call("GET", "/v1/recipients/R-1")).status for _ in range(3)]
    assert statuses == [500, 500, 404]
    assert (await client.call("GET", "/v1/recipients/R-1/logs?page=1")).status == 503
    assert client.service.faults == []


async def test_unauthenticated_request_triggers_no_fault(client):
    client.simulator.inject_fault(Fault("*", "*", status=500))
    secret_key, client.secret_key = client.secret_key, "wrong"
    assert (await client.call("GET", "/v1/recipients")).status == 401
    client.secret_key = secret_key
    assert (await client.call("GET", "/v1/recipients")).status == 500


async def test_simulator_bug_is_an_internal_error(client, caplog):
    recipient = await client.create_recipient()
    client.service.require_recipient(recipient["id"]).overrides = {"broken": object()}
    answer = await client.call("GET", f"/v1/recipients/{recipient['id']}")
    assert (answer.status, answer.errors) == (500, [("internal_server_error", None)])
    assert "failed" in caplog.text
