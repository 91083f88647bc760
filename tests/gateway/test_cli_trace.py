"""`payout-gateway trace`: everything known about an id, without personal data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.operating import Post, eventually, logged, lose_a_batch, post
from tests.payday import WALLET, done, make_batch, make_recipient, payment_ids

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def requests(told: Any) -> list[tuple[str, str]]:
    return [(one["operation"], one["state"]) for one in told["requests"]]


async def traced(here: Post, id_: str) -> Any:
    """Trace an id once deliveries are recorded, which happens after the answers."""
    told: Any = None

    async def answered() -> bool:
        nonlocal told
        told = await here.told("trace", id_)
        return {state for _operation, state in requests(told)} == {"answered"}

    await eventually(answered)
    return told


async def test_a_recipient_is_traced_through_every_call_that_was_made(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await done(here.house, "PATCH", f"/recipients/{recipient}", {"firstName": "Augusta"})
        await done(here.house, "DELETE", f"/recipients/{recipient}")
        told = await traced(here, recipient)
        assert (told["merchant"], told["environment"]) == ("demo", "sandbox")
        assert [operation for operation, _state in requests(told)] == [
            "create_recipient",
            "update_recipient",
            "delete_recipient",
        ]
        first = told["requests"][0]
        assert MOMENT.fullmatch(first["at"])
        assert (first["key"], first["state"]) == ("demo-sandbox", "answered")
        assert first["request_id"]
        create, account = first["writes"]
        assert (create["method"], create["path"]) == ("POST", "/recipients")
        assert (create["state"], create["made"]) == ("answered", recipient)
        assert 0 <= create["seconds"] < 5
        assert account["path"] == f"/recipients/{recipient}/accounts"
        assert account["made"].startswith("A-")
        assert told["facts"] == {f"recipient {recipient}": {"deleted": True}}
        whole = await here.says("trace", recipient)
        for words in ("create_recipient, key demo-sandbox", f"made {recipient}", "deleted true"):
            assert words in whole.stdout


async def test_a_request_is_traced_by_the_id_that_its_client_and_the_log_have(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        answer = await here.house.ask("POST", "/v1/recipients", body)
        recipient, given = answer.body["recipient"]["id"], answer.headers["X-Request-Id"]
        told = await traced(here, recipient)
        assert [one["request_id"] for one in told["requests"]] == [given]
        assert f"request_id={given}" in logged(tmp_path)
        undertaking = told["requests"][0]["undertaking"]
        for id_ in (given, undertaking, f"{undertaking[:12]}.0"):
            found = await here.told("trace", id_)
            assert requests(found) == requests(told)
            assert {name["id"] for name in found["names"]} >= {given, recipient}
        assert f"request {given}" in (await here.says("trace", given)).stdout


async def test_the_log_says_of_a_retry_which_request_trace_knows(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        once = {"Idempotency-Key": "one"}
        first = await here.house.ask("POST", "/v1/recipients", body, headers=once)
        again = await here.house.ask("POST", "/v1/recipients", body, headers=once)
        assert first.body == again.body
        one, other = (each.headers["X-Request-Id"] for each in (first, again))
        lines = logged(tmp_path).splitlines()
        (of_first,) = [line for line in lines if f"request_id={one}" in line]
        (of_retry,) = [line for line in lines if f"request_id={other}" in line]
        assert "retry_of" not in of_first
        assert f"retry_of={one}" in of_retry
        unknown = await here.says("trace", again.headers["X-Request-Id"], code=2)
        assert "retry_of" in unknown.stderr


async def test_what_an_operator_did_says_of_whom(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await here.says("freeze", "--merchant", "demo")
        await here.says("freeze", "--all")
        whole = (await here.says("trace", recipient)).stdout
        assert "froze: merchant demo, live and sandbox" in whole
        assert "froze: every merchant, live and sandbox" in whole
        one, all_ = (await here.told("trace", recipient))["acts"]
        assert (one["merchant"], one["environment"]) == ("demo", None)
        assert (all_["merchant"], all_["environment"]) == (None, None)


async def test_an_account_is_traced_to_what_made_it_and_what_changed_it(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        (made,) = (held.id for held in here.service.recipient(recipient).accounts)
        wallet = {"address": "other@wallet.example.com"}
        body = {**WALLET, "accounts": {"wallet": wallet}}
        await done(here.house, "PATCH", f"/recipients/{recipient}/payout-methods", body)
        told = await here.told("trace", made)
        assert [operation for operation, _state in requests(told)] == [
            "create_recipient",
            "update_payout_method",
        ]
        assert told["requests"][1]["writes"][0]["path"].endswith(f"/accounts/{made}")


async def test_every_spelling_of_a_batch_leads_to_the_same(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (payment,) = await payment_ids(here.house, batch)
        change = {"sourceAmount": "6.00"}
        await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
        await done(here.house, "POST", f"/batches/{batch}/start-processing")
        first, second = here.service.world().batches
        (tmp_path / "ids.csv").write_text(f"B-OLD1,{first}\n")
        await here.says(
            *("ids", "import", str(tmp_path / "ids.csv")),
            *("--merchant", "demo", "--environment", "sandbox"),
        )
        told = {id_: await here.told("trace", id_) for id_ in (batch, first, second, "B-OLD1")}
        for one in told.values():
            assert {name["id"] for name in one["names"]} == {batch, first, second, "B-OLD1"}
            assert [operation for operation, _state in requests(one)] == [
                "create_batch",
                "update_payment",
                "start_batch",
            ]
            assert one["payments"] == 1
            known = one["facts"][f"batch {first}"]
            assert (known["phase"], known["upstream"], known["abandoned"]) == (
                "sent",
                second,
                [first],
            )
        what = {(name["id"], name["what"]) for name in told[batch]["names"]}
        assert (first, "the service's id, superseded: must never be started") in what
        assert (first, "the service's id") not in what
        assert ("B-OLD1", "the legacy id, imported") in what
        started = told[batch]["requests"][2]["writes"]
        assert [write["path"] for write in started] == [
            "/batches",
            f"/batches/{second}/start-processing",
        ]
        shown = await here.told("trace", payment)
        assert f"a payment of batch {first}" in {name["what"] for name in shown["names"]}


async def test_what_is_kept_in_a_draft_says_that_the_service_was_not_changed(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (payment,) = await payment_ids(here.house, batch)
        path = f"/batches/{batch}/payments/{payment}"
        await done(here.house, "PATCH", path, {"sourceAmount": "6.00"})
        await done(here.house, "PATCH", path, {"sourceAmount": "7.00"})
        first, second = (await here.told("trace", batch))["requests"][1:]
        assert [write["state"] for write in first["writes"]] == ["no path"]
        assert second["writes"] == []
        said = (await here.says("trace", batch)).stdout
        assert "not done: the service has no such path" in said
        told = "nothing was changed at the service: any change it made is in a draft of the gateway"
        assert said.count(told) == 2
        assert "unsent" not in said


async def test_a_batch_that_is_deleted_here_alone_says_that_it_is_abandoned(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        await done(here.house, "DELETE", f"/batches/{batch}")
        said = (await here.says("trace", batch)).stdout
        assert "nothing was changed at the service: its batch is superseded" in said


async def test_what_changed_something_says_nothing_of_a_draft(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (payment,) = await payment_ids(here.house, batch)
        change = {"sourceAmount": "6.00"}
        await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
        assert "nothing was changed" not in (await here.says("trace", batch)).stdout


async def test_a_write_of_unknown_outcome_says_why(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", close="before")
        await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
        last = (await here.told("trace", batch))["requests"][-1]
        assert last["writes"][-1]["state"] == "sent"
        assert last["writes"][-1]["seconds"] is None
        assert last["why"]


async def test_nothing_personal_is_printed(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        recipient = await make_recipient(here.house, "lovelace")
        body = {
            "sourceCurrency": "USD",
            "description": "for Grace",
            "payments": [
                {"recipient": {"id": recipient}, "sourceAmount": "5.00", "memo": "thank you"}
            ],
        }
        batch = (await done(here.house, "POST", "/batches", body))["batch"]["id"]
        (payment,) = await payment_ids(here.house, batch)
        change = {"sourceAmount": "6.00", "memo": "thank you too"}
        await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
        await lose_a_batch(here, recipient)
        for id_ in (recipient, batch, payment):
            for words in ([], ["--json"]):
                said = (await here.says("trace", id_, *words)).stdout.casefold()
                for personal in (
                    "lovelace",
                    "grace",
                    "thank",
                    "example.com",
                    "main street",
                    "6.00",
                ):
                    assert personal not in said
        listed = (await here.says("writes", "unsettled")).stdout.casefold()
        assert "lovelace" not in listed


async def test_a_request_names_objects_and_no_part_of_a_path(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (current,) = here.service.world().batches
        for step in ("generate-quote", "start-processing"):
            await done(here.house, "POST", f"/batches/{batch}/{step}")
        for one in (await traced(here, batch))["requests"]:
            told = await here.told("trace", one["request_id"])
            named = {name["id"] for name in told["names"]} - {one["request_id"]}
            assert named == {current}, one["operation"]


async def test_an_id_of_two_merchants_has_to_be_said_whose(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await here.house.import_key(merchant="other", api_key="another-api-key", access_key="AK2")
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (current,) = here.service.world().batches
        (tmp_path / "ids.csv").write_text(f"{batch},{current}\n")
        words = ("--merchant", "other", "--environment", "sandbox")
        await here.says("ids", "import", str(tmp_path / "ids.csv"), *words)
        refused = await here.says("trace", batch, code=2)
        assert "several tenants have this id: demo sandbox, other sandbox; choose" in refused.stderr
        told = await here.told("trace", batch, "--merchant", "demo")
        assert requests(told)[0][0] == "create_batch"
        assert requests(await here.told("trace", batch, "--merchant", "other")) == []


async def test_an_id_of_which_nothing_is_known_is_a_mistake(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        refused = await here.says("trace", "R-nobody", "--json", code=2)
        assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
        assert "nothing is known about this id" in refused.stderr


async def test_it_prints_one_document(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        said = (await here.says("trace", recipient, "--json")).stdout
        assert isinstance(json.loads(said), dict)
