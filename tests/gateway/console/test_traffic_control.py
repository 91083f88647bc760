"""Traffic control in the console: confirmation page, scope, and the same effect as the commands."""

from __future__ import annotations

import pytest

from gateway.storage import Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.brownout_rows import Brownout, list_brownouts
from gateway.storage.freezes import list_freezes
from gateway.storage.mode_rows import list_mode_switches
from tests.console import ConsoleClient, ConsoleUnderTest
from tests.gateway.console.test_pages import read_page_text
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read_confirmation_page(client: ConsoleClient, query: str) -> str:
    page = await client.get(f"/switches/confirm?{query}")
    assert page.status == 200, page.text
    return page.text


async def test_freeze_stops_writes_and_unfreeze_resumes_them(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    await create_recipient(console.gateway)
    confirmation_page = await read_confirmation_page(
        console_client, "do=freeze&merchant=demo&environment=sandbox"
    )
    assert "Freeze writes of merchant demo, sandbox?" in confirmation_page
    assert "<td>demo-sandbox</td>" in confirmation_page
    fields = {"do": "freeze", "merchant": "demo", "environment": "sandbox"}
    assert (await console_client.post("/switches", fields)).headers[
        "Location"
    ] == "/switches?done=freeze"
    recipient = {
        "type": "individual",
        "firstName": "A",
        "lastName": "B",
        "email": "ada@example.com",
    }
    response = await console.gateway.request("POST", "/v1/recipients", recipient)
    assert (response.status, response.body["errors"][0]["code"]) == (500, "internal_server_error")
    assert (await console_client.post("/switches", fields)).status == 409
    page = await console_client.get("/switches?done=freeze")
    assert "Writes of <b>merchant demo, sandbox</b> are frozen" in page.text
    assert "Running gateways apply it within a second" in page.text

    assert "End the freeze of" in await read_confirmation_page(
        console_client, "do=unfreeze&merchant=demo&environment=sandbox"
    )
    assert (await console_client.post("/switches", {**fields, "do": "unfreeze"})).status == 303
    async with open_store(console.gateway.settings.state) as store:
        assert await list_freezes(store) == []
    await create_recipient(console.gateway, "bob")


async def test_mode_is_switched_for_a_key_and_a_group(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    query = "do=mode&merchant=&key=demo-sandbox&group=balances&mode=forward"
    confirmation_page = await read_confirmation_page(console_client, query)
    assert "Switch balances of demo sandbox, key demo-sandbox to forward?" in confirmation_page
    assert "Requests are passed unchanged to the legacy service" in confirmation_page
    fields = dict(part.split("=") for part in query.split("&"))
    assert (await console_client.post("/switches", fields)).status == 303
    async with open_store(console.gateway.settings.state) as store:
        (switch,) = await list_mode_switches(store)
        assert (switch.tenant, switch.key) == (Tenant("demo", "sandbox"), "demo-sandbox")
        assert (switch.group, switch.mode) == ("balances", "forward")
        assert (await list_audit_events(store))[-1].actor == "console, from 127.0.0.1"
    mode_form = {"do": "mode", "merchant": "demo", "key": "", "group": "", "mode": "translate"}
    assert "had their own mode" in await read_confirmation_page(
        console_client, "do=mode&merchant=demo&group=&mode=translate"
    )
    assert (await console_client.post("/switches", mode_form)).status == 303
    async with open_store(console.gateway.settings.state) as store:
        assert {
            (mode_switch.key, mode_switch.mode) for mode_switch in await list_mode_switches(store)
        } == {("", "translate")}


async def load_brownouts(console: ConsoleUnderTest) -> list[Brownout]:
    async with open_store(console.gateway.settings.state) as store:
        return await list_brownouts(store)


async def test_brownout_is_started_and_cancelled(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    query = "do=brownout&minutes=15&merchant=*&key=demo-sandbox&operation=balances"
    assert "read_balances" in await read_confirmation_page(console_client, query)
    fields = dict(part.split("=") for part in query.split("&"))
    assert (await console_client.post("/switches", fields)).status == 303
    (open_brownout,) = await load_brownouts(console)
    assert (open_brownout.key, open_brownout.ended) == ("demo-sandbox", False)
    assert 890 < (open_brownout.ends_at - open_brownout.begins_at).total_seconds() <= 900

    async def is_met() -> bool:
        return (await console.gateway.request("GET", "/v1/profile/balances")).status == 403

    await wait_until_async(is_met)
    assert "under way" in await read_confirmation_page(
        console_client, f"do=brownout-off&id={open_brownout.id}"
    )
    assert (
        await console_client.post("/switches", {"do": "brownout-off", "id": open_brownout.id})
    ).status == 303
    assert [brownout.ended for brownout in await load_brownouts(console)] == [True]
    second_cancellation = await console_client.post(
        "/switches", {"do": "brownout-off", "id": open_brownout.id}
    )
    assert second_cancellation.status == 409
    audit_log = await read_page_text(console_client, "/switches")
    audit_log = audit_log[audit_log.index("Audit log") :]
    for action in ("scheduled", "switched off"):
        scope = f"{action} brownout {open_brownout.id} of key demo-sandbox: read_balances"
        assert scope in audit_log
    assert "read_wallet_balance merchant demo" in audit_log
    assert (await console_client.post("/switches", fields | {"operation": "*"})).status == 303
    assert (await console_client.post("/switches", {"do": "brownout-off", "id": ""})).status == 303


INVALID_ACTIONS = [
    "do=nothing",
    "",
    "do=freeze",
    "do=freeze&merchant=*",
    "do=freeze&merchant=nobody&environment=*",
    "do=freeze&merchant=*&environment=moon",
    "do=mode&key=demo-sandbox&mode=sideways",
    "do=mode&key=demo-sandbox&mode=forward&group=none",
    "do=mode&key=demo&mode=forward",
    "do=mode&merchant=nobody&mode=translate",
    "do=mode&key=&mode=translate",
    "do=mode&merchant=nobody&key=demo-sandbox&mode=translate",
    "do=brownout&minutes=7&merchant=*&key=*&operation=*",
    "do=brownout&merchant=*&key=*&operation=*",
    "do=brownout&minutes=5&key=*&operation=*",
    "do=brownout&minutes=5&merchant=*&key=*",
    "do=brownout&minutes=5&merchant=*&operation=*",
    "do=brownout&minutes=5&merchant=nobody&key=*&operation=*",
    "do=brownout&minutes=5&merchant=demo&key=nobody&operation=*",
    "do=brownout&minutes=5&merchant=*&key=*&operation=nothing",
    "do=brownout-off&id=none",
]


async def test_invalid_action_is_reported_and_changes_nothing(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    async with open_store(console.gateway.settings.state) as store:
        events_before = await list_audit_events(store)
    for query in INVALID_ACTIONS:
        assert (await console_client.get(f"/switches/confirm?{query}")).status == 409, query
        fields = dict(part.split("=") for part in query.split("&") if part)
        assert (await console_client.post("/switches", fields)).status == 409, query
    async with open_store(console.gateway.settings.state) as store:
        assert await list_audit_events(store) == events_before


async def test_names_of_merchants_and_keys_are_suggested(console_client: ConsoleClient) -> None:
    page = (await console_client.get("/switches")).text
    assert '<option value="demo"></option>' in page
    assert '<option value="demo-sandbox">demo sandbox</option>' in page
