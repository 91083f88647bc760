"""Each switch: the question, whom it names, and that it does what the command line does."""

from __future__ import annotations

import pytest

from gateway.storage import Tenant, open_store
from gateway.storage.audit_log import acts_of
from gateway.storage.brownout_rows import Brownout, all_brownouts
from gateway.storage.freezes import frozen
from gateway.storage.mode_rows import all_switches
from tests.console import Seen, Visitor
from tests.operating import eventually
from tests.payday import make_recipient

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def asked(visitor: Visitor, query: str) -> str:
    page = await visitor.get(f"/switches/confirm?{query}")
    assert page.status == 200, page.text
    return page.text


async def test_a_freeze_stops_writes_and_its_end_lets_them_begin(
    seen: Seen, visitor: Visitor
) -> None:
    await make_recipient(seen.house)
    question = await asked(visitor, "do=freeze&merchant=demo&environment=sandbox")
    assert "Freeze writes of merchant demo, sandbox?" in question
    assert "<td>demo-sandbox</td>" in question
    fields = {"do": "freeze", "merchant": "demo", "environment": "sandbox"}
    assert (await visitor.post("/switches", fields)).headers["Location"] == "/switches?done=freeze"
    ada = {"type": "individual", "firstName": "A", "lastName": "B", "email": "ada@example.com"}
    made = await seen.house.ask("POST", "/v1/recipients", ada)
    assert (made.status, made.body["errors"][0]["code"]) == (500, "internal_server_error")
    assert (await visitor.post("/switches", fields)).status == 409
    page = await visitor.get("/switches?done=freeze")
    assert "Writes of <b>merchant demo, sandbox</b> are frozen" in page.text
    assert "Running gateways apply it within a second" in page.text

    assert "End the freeze of" in await asked(
        visitor, "do=unfreeze&merchant=demo&environment=sandbox"
    )
    assert (await visitor.post("/switches", {**fields, "do": "unfreeze"})).status == 303
    async with open_store(seen.house.settings.state) as store:
        assert await frozen(store) == []
    await make_recipient(seen.house, "bob")


async def test_a_mode_is_switched_for_a_key_and_a_group(seen: Seen, visitor: Visitor) -> None:
    query = "do=mode&merchant=&key=demo-sandbox&group=balances&mode=forward"
    question = await asked(visitor, query)
    assert "Balances of demo sandbox, key demo-sandbox" in question
    assert "requests are passed unchanged to the legacy service" in question
    fields = dict(part.split("=") for part in query.split("&"))
    assert (await visitor.post("/switches", fields)).status == 303
    async with open_store(seen.house.settings.state) as store:
        (switch,) = await all_switches(store)
        assert (switch.owner, switch.key) == (Tenant("demo", "sandbox"), "demo-sandbox")
        assert (switch.group, switch.mode) == ("balances", "forward")
        assert (await acts_of(store))[-1].by == "console, from 127.0.0.1"
    everything = {"do": "mode", "merchant": "demo", "key": "", "group": "", "mode": "translate"}
    assert "had their own mode" in await asked(
        visitor, "do=mode&merchant=demo&group=&mode=translate"
    )
    assert (await visitor.post("/switches", everything)).status == 303
    async with open_store(seen.house.settings.state) as store:
        assert {(one.key, one.mode) for one in await all_switches(store)} == {("", "translate")}


async def brownouts(seen: Seen) -> list[Brownout]:
    async with open_store(seen.house.settings.state) as store:
        return await all_brownouts(store)


async def test_a_brownout_begins_and_is_switched_off(seen: Seen, visitor: Visitor) -> None:
    query = "do=brownout&minutes=15&merchant=&key=demo-sandbox&operation=balances&counts="
    assert "read_balances" in await asked(visitor, query)
    fields = dict(part.split("=") for part in query.split("&"))
    assert (await visitor.post("/switches", fields)).status == 303
    (one,) = await brownouts(seen)
    assert (one.key, one.refuses, one.ended) == ("demo-sandbox", True, False)
    assert 890 < (one.ends_at - one.begins_at).total_seconds() <= 900

    async def is_met() -> bool:
        return (await seen.house.ask("GET", "/v1/profile/balances")).status == 403

    await eventually(is_met)
    assert "under way" in await asked(visitor, f"do=brownout-off&id={one.id}")
    assert (await visitor.post("/switches", {"do": "brownout-off", "id": one.id})).status == 303
    assert [each.ended for each in await brownouts(seen)] == [True]
    again = await visitor.post("/switches", {"do": "brownout-off", "id": one.id})
    assert again.status == 409
    counting = {**fields, "operation": "", "counts": "yes"}
    assert (await visitor.post("/switches", counting)).status == 303
    assert [each.refuses for each in await brownouts(seen)] == [True, False]
    assert (await visitor.post("/switches", {"do": "brownout-off", "id": ""})).status == 303


ODD = [
    "do=nothing",
    "",
    "do=freeze&merchant=nobody",
    "do=freeze&environment=moon",
    "do=mode&key=demo-sandbox&mode=sideways",
    "do=mode&key=demo-sandbox&mode=forward&group=none",
    "do=mode&key=demo&mode=forward",
    "do=mode&merchant=nobody&mode=translate",
    "do=mode&key=&mode=translate",
    "do=mode&merchant=nobody&key=demo-sandbox&mode=translate",
    "do=brownout&minutes=7",
    "do=brownout&minutes=5&merchant=nobody",
    "do=brownout&minutes=5&merchant=demo&key=nobody",
    "do=brownout&minutes=5&operation=nothing",
    "do=brownout-off&id=none",
]


async def test_what_cannot_be_done_is_said_and_nothing_is_changed(
    seen: Seen, visitor: Visitor
) -> None:
    async with open_store(seen.house.settings.state) as store:
        before = await acts_of(store)
    for query in ODD:
        assert (await visitor.get(f"/switches/confirm?{query}")).status == 409, query
        fields = dict(part.split("=") for part in query.split("&") if part)
        assert (await visitor.post("/switches", fields)).status == 409, query
    async with open_store(seen.house.settings.state) as store:
        assert await acts_of(store) == before


async def test_with_very_many_keys_names_are_typed(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert '<select id="mode-key"' in (await visitor.get("/switches")).text
    monkeypatch.setattr("gateway.console.traffic_control.MAX_CHOICES", 0)
    page = await visitor.get("/switches")
    assert '<input id="mode-key" name="key"' in page.text
    assert "demo-sandbox</option>" not in page.text
