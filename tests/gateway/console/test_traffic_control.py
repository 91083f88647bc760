"""Traffic control in the console: confirmation page, scope, and the same effect as the commands."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.storage import Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.brownout_rows import Brownout, insert_brownout
from gateway.storage.freezes import freeze_writes, list_freezes, unfreeze_writes
from gateway.storage.mode_rows import set_mode
from tests.console import ConsoleClient, ConsoleUnderTest
from tests.gateway.console.test_pages import read_page_text
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
    assert "stops before its next write" in confirmation_page
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
        assert (await list_audit_events(store))[-1].actor == "console, from 127.0.0.1"
    await create_recipient(console.gateway, "bob")


async def test_brownouts_and_modes_are_listed_with_the_audit_log(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    async with open_store(console.gateway.settings.state) as store:
        now = store.clock()
        brownout = Brownout(
            begins_at=now + timedelta(hours=1),
            ends_at=now + timedelta(hours=2),
            merchant="demo",
            key="",
            operations=("read_balances",),
        )
        await insert_brownout(store, brownout)
        await set_mode(store, Tenant("demo", "sandbox"), "demo-sandbox", ["geography"], "translate")
    page = await read_page_text(console_client, "/switches")
    assert f"to come demo, read_balances {brownout.id}" in page
    assert "demo sandbox demo-sandbox geography translate" in page
    assert f"scheduled brownout {brownout.id}" in page[page.index("Audit log") :]


async def test_cut_off_audit_log_says_how_many_entries_are_older(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    async with open_store(console.gateway.settings.state) as store:
        for _ in range(102):
            await freeze_writes(store, Tenant("demo", "live"))
            await unfreeze_writes(store, Tenant("demo", "live"))
        older = len(await list_audit_events(store)) - 100
    page = await read_page_text(console_client, "/switches")
    assert f"{older} older ones are in the table audit_events of the database." in page


INVALID_ACTIONS = [
    "do=nothing",
    "",
    "do=freeze",
    "do=freeze&merchant=*",
    "do=freeze&merchant=nobody&environment=*",
    "do=freeze&merchant=*&environment=moon",
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


async def test_names_of_merchants_are_suggested(console_client: ConsoleClient) -> None:
    page = (await console_client.get("/switches")).text
    assert '<option value="demo"></option>' in page
