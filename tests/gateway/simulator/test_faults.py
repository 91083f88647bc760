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
