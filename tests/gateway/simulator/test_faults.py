import asyncio

import aiohttp
import pytest

from gateway.simulator import Fault

PERSON = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}


async def made(client):
    return len(client.service.world().recipients)


async def test_an_answer_can_be_given_instead_of_executing(client):
    client.simulator.next(
        Fault(
            "POST",
            "/v1/recipients",
            status=502,
            body=b"<html>",
            headers={"Content-Type": "text/html"},
        )
    )
    answer = await client.call("POST", "/v1/recipients", PERSON)
    assert (answer.status, answer.text) == (502, "<html>")
    assert answer.headers["Content-Type"] == "text/html"
    assert await made(client) == 0
    assert (await client.call("POST", "/v1/recipients", PERSON)).status == 200


async def test_an_answer_can_be_given_after_executing(client):
    client.simulator.next(Fault("POST", "*", status=200, body=b'{"ok":tr', executes=True))
    answer = await client.call("POST", "/v1/recipients", PERSON)
    assert (answer.status, answer.text) == (200, '{"ok":tr')
    assert await made(client) == 1


@pytest.mark.parametrize(("when", "recipients"), [("before", 0), ("after", 1)])
async def test_the_connection_can_close(client, when, recipients):
    client.simulator.next(Fault("POST", "/v1/recipients", close=when))
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.call("POST", "/v1/recipients", PERSON)
    assert await made(client) == recipients
    assert [each.status for each in client.service.requests] == [None]


@pytest.mark.parametrize(("wait", "recipients"), [("delay", 0), ("answer_delay", 1)])
async def test_a_request_can_wait_before_or_after_executing(client, wait, recipients):
    client.simulator.next(Fault("POST", "*", **{wait: 0.2}))
    call = asyncio.create_task(client.call("POST", "/v1/recipients", PERSON))
    await asyncio.sleep(0.1)
    assert await made(client) == recipients
    assert (await call).status == 200
    assert await made(client) == 1


async def test_what_was_received_is_executed_though_the_client_goes_away(client):
    client.simulator.next(Fault("POST", "*", delay=0.1))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.call("POST", "/v1/recipients", PERSON), 0.05)
    await asyncio.sleep(0.2)
    assert await made(client) == 1


async def test_a_fault_meets_its_method_and_path_only_and_so_many_times(client):
    client.simulator.next(Fault("GET", "/v1/recipients/*", status=500, body=b"{}", times=2))
    client.simulator.next(Fault("*", "/v1/recipients/*/logs", status=503))
    assert (await client.call("GET", "/v1/recipients")).status == 200
    assert (await client.call("GET", "/v1/recipients/R-1/payments")).status == 404
    assert (await client.call("DELETE", "/v1/recipients/R-1")).status == 404
    seen = [(await client.call("GET", "/v1/recipients/R-1")).status for _ in range(3)]
    assert seen == [500, 500, 404]
    assert (await client.call("GET", "/v1/recipients/R-1/logs?page=1")).status == 503
    assert client.service.faults == []


async def test_a_stranger_meets_no_fault(client):
    client.simulator.next(Fault("*", "*", status=500))
    right, client.secret_key = client.secret_key, "wrong"
    assert (await client.call("GET", "/v1/recipients")).status == 401
    client.secret_key = right
    assert (await client.call("GET", "/v1/recipients")).status == 500


async def test_a_fault_of_its_own_is_an_internal_error(client, caplog):
    recipient = await client.create_recipient()
    client.service.recipient(recipient["id"]).extra = {"broken": object()}
    answer = await client.call("GET", f"/v1/recipients/{recipient['id']}")
    assert (answer.status, answer.errors) == (500, [("internal_server_error", None)])
    assert "failed" in caplog.text
