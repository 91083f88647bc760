"""Migration modes by operation group and key: routing of requests, and no duplicate writes."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault
from gateway.storage import Ledger, open_store
from gateway.storage.undertakings import OperationRepository
from tests.gateway.compare.towns import Heard, Said
from tests.gateway.compare.towns import open_town as open_service
from tests.house import KEY
from tests.operating import Post, eventually, logged, no_reading_at_once
from tests.payday import done, make_batch, make_recipient
from tests.sockets import until
from tests.valley import API_KEY, NAME, Valley, open_valley

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Byron", "email": "byron@example.com"}


def paying(recipient: str, amount: str) -> dict[str, Any]:
    """A batch of one payment."""
    payments = [{"recipient": {"id": recipient}, "sourceAmount": amount}]
    return {"sourceCurrency": "USD", "payments": payments}


def request_lines(folder: Path, operation: str) -> list[str]:
    """Returns the log lines of an operation, without terminal colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", logged(folder))
    return [line for line in plain.splitlines() if f"operation={operation} " in line]


# Switching


async def test_every_request_is_translated_until_it_is_switched(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await make_recipient(here.house)
        assert here.asked_legacy() == 0
        told = await here.told("modes", "list")
        assert told == {"modes": [], "begun_at_legacy": [], "acts": []}


async def test_a_key_is_switched_while_the_gateway_runs_and_back(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        translated = await make_recipient(here.house)
        await here.switch("forward")
        assert (await here.house.ask("GET", f"/v1/recipients/{translated}")).status == 404
        forwarded = await make_recipient(here.house, "eve")
        assert forwarded in here.legacy.world().recipients
        await here.switch("translate")
        assert (await here.house.ask("GET", f"/v1/recipients/{translated}")).status == 200
        assert (await here.house.ask("GET", f"/v1/recipients/{forwarded}")).status == 404


async def test_one_group_is_switched_and_no_other(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward", "balances")
        before, current = here.asked_legacy(), here.asked_current()
        await done(here.house, "GET", "/recipients")
        await done(here.house, "GET", "/batches")
        assert here.asked_legacy() == before
        assert here.asked_current() > current
        await done(here.house, "GET", "/profile/balances/service")
        assert here.asked_legacy() == before + 1


async def test_one_key_is_switched_and_no_other(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        before = here.asked_legacy()
        await done(here.house, "GET", "/recipients", headers={"X-API-Key": KEY["api_key"]})
        assert here.asked_legacy() == before


async def test_a_key_that_is_renamed_stays_where_it_was_switched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The gateway must see the new name before it loads the modes again.
    monkeypatch.setattr("gateway.migration.modes.EVERY_SECONDS", 4)
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        await here.house.import_key(api_key=API_KEY, name="store")
        last = here.asked_legacy()

        async def is_renamed() -> bool:
            nonlocal last
            await done(here.house, "GET", "/recipients")
            last, before = here.asked_legacy(), last
            assert last == before + 1
            return "key=store" in logged(here.folder)

        await eventually(is_renamed)
        modes = (await here.told("modes", "list"))["modes"]
        assert {one["mode"] for one in modes if one["key"] == "store"} == {"forward"}


async def test_a_merchant_is_switched_with_all_its_keys(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward", "balances")
        said = await here.says("modes", "set", "--merchant", "demo", "translate", "--yes")
        assert f"replaces the mode of these keys: {NAME}" in said
        assert {one["key"] for one in (await here.told("modes", "list"))["modes"]} == {None}
        await here.says("modes", "set", "--merchant", "demo", "forward", "--yes")

        async def follows() -> bool:
            before = here.asked_legacy()
            await here.house.ask("GET", "/v1/profile/balances")
            return here.asked_legacy() > before

        await eventually(follows)


async def test_the_geography_of_a_key_is_switched_and_a_keyless_one_answered_here(
    tmp_path: Path,
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward", "balances")
        await here.says("modes", "set", "--key", NAME, "--group", "geography", "forward", "--yes")

        async def follows() -> bool:
            assert (await here.house.ask("GET", "/v1/geography/countries/DE")).status == 200
            return here.asked_legacy("GET", "/v1/geography/countries/DE") > 0

        await eventually(follows)
        seen = here.asked_legacy()
        for key in ("", "nobodys-key"):
            got = await here.house.ask(
                "GET", "/v1/geography/countries/DE", headers={"X-API-Key": key}
            )
            assert got.status == 200
        assert here.asked_legacy() == seen


async def test_no_request_is_dropped_while_it_is_switched(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        over = asyncio.Event()
        statuses: list[int] = []

        async def client() -> None:
            while not over.is_set():
                statuses.append((await here.house.ask("GET", "/v1/profile/balances")).status)

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for mode in ("forward", "translate", "forward", "translate"):
            before, current = here.asked_legacy(), here.asked_current()
            await here.says("modes", "set", "--key", NAME, mode, "--yes")

            async def both() -> bool:
                legacy = here.asked_legacy() > before  # noqa: B023
                return legacy if mode == "forward" else here.asked_current() > current  # noqa: B023

            await eventually(both)
        over.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}


# Forwarded requests and their answers


async def test_a_request_goes_as_it_came_and_its_answer_comes_back_as_it_is(
    tmp_path: Path,
) -> None:
    heard: list[Heard] = []

    def says(one: Heard) -> Any:
        heard.append(one)
        if one.method == "GET":
            return Said({"ok": True, "odd": [1.50, None], "recipients": []}, 200, {"X-Odd": "yes"})
        return Said({"ok": False, "errors": [{"code": "odd_code", "message": "no"}]}, 418)

    async with open_service(says) as legacy:
        async with open_valley(tmp_path, legacy_url=legacy.url) as here:
            await here.says("modes", "set", "--key", NAME, "forward", "--yes")

            async def follows() -> bool:
                await here.house.ask("GET", "/v1/recipients")
                return bool(heard)

            await eventually(follows)
            heard.clear()
            got = await here.house.ask("GET", "/v1/recipients/?&search=a%40b&page=1&x=%C3%A9")
            assert (got.status, got.headers["X-Odd"]) == (200, "yes")
            assert got.text == '{"ok": true, "odd": [1.5, null], "recipients": []}'
            body = b'{ "type" : "individual", "odd": [1.50, null], "email":"\xc3\xa9@example.com" }'
            got = await here.house.ask(
                "POST",
                "/v1/recipients/",
                data=body,
                headers={"X-Forwarded-For": "10.1.1.1", "Authorization": "Basic eA==", "A-B": "c"},
            )
            assert (got.status, got.body["errors"][0]["code"]) == (418, "odd_code")
    first, second = heard
    assert first.target == "/v1/recipients/?&search=a%40b&page=1&x=%C3%A9"
    assert first.headers["x-api-key"] == API_KEY
    assert (second.method, second.target, second.body.encode()) == (
        "POST",
        "/v1/recipients/",
        body,
    )
    assert not {"x-forwarded-for", "authorization"} & second.headers.keys()


async def test_an_answer_that_is_compressed_all_the_same_is_read(tmp_path: Path) -> None:
    def says(one: Heard) -> Said:
        assert "accept-encoding" not in one.headers
        body = {"ok": True, "batch": {"id": "B-LEGACY0000000001"}, "batches": []}
        return Said(gzip.compress(json.dumps(body).encode()), 200, {"Content-Encoding": "gzip"})

    async with open_service(says) as legacy:
        async with open_valley(tmp_path, legacy_url=legacy.url) as here:
            await here.says("modes", "set", "--key", NAME, "forward", "--yes")

            async def follows() -> bool:
                await here.house.ask("GET", "/v1/batches")
                return bool(legacy.heard)

            await eventually(follows)
            got = await here.house.ask("POST", "/v1/batches", {"sourceCurrency": "USD"})
            assert got.body["batch"]["id"] == "B-LEGACY0000000001"
            told = await here.told("modes", "list")
            assert [one["batches"] for one in told["begun_at_legacy"]] == [1]


async def test_it_is_counted_and_logged_as_forwarded(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        await make_recipient(here.house)
        (line,) = request_lines(tmp_path, "create_recipient")
        assert {"mode=forward", "upstream_calls=1", f"key={NAME}"} <= set(line.split())

        async def counted() -> bool:
            keys = (await here.told("report", "usage"))["keys"]
            used = {
                one["operation"]: one["requests"]
                for key in keys
                if key["key"] == NAME
                for one in key["operations"]
            }
            return used.get("create_recipient") == 1

        await eventually(counted)


async def test_the_limit_holds_for_what_is_forwarded(tmp_path: Path) -> None:
    sections = {"limits": {"requests_per_hour": 5}}
    async with open_valley(tmp_path, apart=True, sections=sections) as here:
        await here.says("modes", "set", "--key", NAME, "forward", "--yes")
        statuses = [(await here.house.ask("GET", "/v1/recipients")).status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2


async def test_a_redirect_is_not_followed_and_not_given_back(tmp_path: Path) -> None:
    stranger: list[Heard] = []
    async with open_service(lambda one: stranger.append(one) or {"ok": True}) as other:
        away = Said({}, 307, {"Location": f"{other.url}/v1/recipients"})
        async with open_service(lambda _one: away) as legacy:
            async with open_valley(tmp_path, legacy_url=legacy.url) as here:
                await here.says("modes", "set", "--key", NAME, "forward", "--yes")

                async def refused() -> bool:
                    return (await here.house.ask("GET", "/v1/recipients")).status == 500

                await eventually(refused)
                got = await here.house.ask("POST", "/v1/recipients", ADA)
                assert (got.status, "Location" in got.headers) == (500, False)
                assert "unknown" in got.body["errors"][0]["message"]
    assert stranger == []


async def test_without_an_address_nothing_is_switched(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        (tmp_path / "gateway.toml").write_text(
            (tmp_path / "gateway.toml").read_text().replace("legacy_base_url", "# ")
        )
        said = await here.says("modes", "set", "--key", NAME, "forward", "--yes", code=2)
        assert "legacy_base_url is not set" in said


async def test_it_asks_before_it_switches(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        said = await here.says("modes", "set", "--key", NAME, "forward", code=2)
        assert "are passed unchanged to the legacy service" in said
        assert (await here.told("modes", "list"))["modes"] == []
        for words in (["--key", "nobody"], ["--merchant", "nobody"], []):
            await here.says("modes", "set", *words, "forward", "--yes", code=2)


# A batch stays at the service of its first write


async def forwarded_batch(here: Valley) -> str:
    recipient = await make_recipient(here.house, "eve")
    return await make_batch(here.house, recipient, "10.00")


async def test_a_batch_that_was_forwarded_stays_at_the_legacy_service(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        batch = await forwarded_batch(here)
        await here.switch("translate")
        before = here.asked_current("*", "/v1/batch*")
        whole = await done(here.house, "GET", f"/batches/{batch}")
        (payment,) = whole["batch"]["payments"]["payments"]
        path = f"/batches/{batch}/payments/{payment['id']}"
        await done(here.house, "PATCH", path, {"sourceAmount": "12.00"})
        await done(here.house, "GET", f"/batches/{batch}/payments")
        await done(here.house, "POST", f"/batches/{batch}/generate-quote")
        await done(here.house, "GET", f"/batches/{batch}/summary")
        await done(here.house, "POST", f"/batches/{batch}/start-processing")
        assert len(here.legacy.starts) == 1
        assert here.current.starts == []
        assert here.asked_current("*", "/v1/batch*") == before
        told = await here.told("modes", "list")
        assert [one["batches"] for one in told["begun_at_legacy"]] == [1]


async def test_a_write_on_a_recipient_begins_no_batch(tmp_path: Path) -> None:
    """The legacy service can be shut down only when no batch is bound to it."""
    async with open_valley(tmp_path) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        await done(here.house, "PATCH", f"/recipients/{recipient}", {"status": "disabled"})
        await done(here.house, "DELETE", f"/recipients/{recipient}")
        assert (await here.told("modes", "list"))["begun_at_legacy"] == []


async def test_a_batch_that_was_translated_stays_at_the_current_service(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        await here.switch("forward")
        assert (await done(here.house, "GET", f"/batches/{batch}"))["batch"]["id"] == batch
        await done(here.house, "POST", f"/batches/{batch}/start-processing")
        assert len(here.current.starts) == 1
        assert here.legacy.starts == []
        assert here.asked_legacy("*", f"/v1/batches/{batch}*") == 0
        other = await forwarded_batch(here)
        assert await here.house.ask("GET", f"/v1/batches/{other}")
        assert here.asked_legacy("GET", f"/v1/batches/{other}") == 1


async def test_a_batch_that_was_seen_nowhere_goes_where_its_key_goes(tmp_path: Path) -> None:
    """From its first write on, the batch stays at that service."""
    async with open_valley(tmp_path, apart=True) as here:
        recipient = await done_directly(here, "/v1/recipients", {**ADA})
        body = paying(recipient, "1.00")
        made = (await here.directly("POST", "/v1/batches", body)).body["batch"]["id"]
        await here.switch("forward")
        await done(here.house, "GET", f"/batches/{made}")
        await here.switch("translate")
        assert (await here.house.ask("GET", f"/v1/batches/{made}")).status == 404
        await here.switch("forward")
        await done(here.house, "PATCH", f"/batches/{made}", {"payments": []})
        await here.switch("translate")
        await done(here.house, "GET", f"/batches/{made}")


async def done_directly(here: Valley, path: str, body: Any) -> str:
    got = await here.directly("POST", path, body)
    assert got.status == 200, got.text
    return str(next(one for one in got.body.values() if isinstance(one, dict))["id"])


async def test_batches_of_both_sides_are_not_deleted_together(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        recipient = await make_recipient(here.house)
        ours = await make_batch(here.house, recipient, "10.00")
        await here.switch("forward")
        theirs = await forwarded_batch(here)
        got = await here.house.ask("DELETE", "/v1/batches", {"ids": [ours, theirs]})
        assert (got.status, got.body["errors"][0]["field"]) == (406, "ids")
        for one in (ours, theirs):
            await done(here.house, "DELETE", "/batches", {"ids": [one]})
            assert (await here.house.ask("GET", f"/v1/batches/{one}")).status == 404


async def test_a_payment_is_found_at_either_side(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        payments = []
        for mode in ("translate", "forward"):
            await here.switch(mode)
            batch = await make_batch(
                here.house, await make_recipient(here.house, mode[:3]), "10.00"
            )
            whole = await done(here.house, "GET", f"/batches/{batch}")
            payments += [one["id"] for one in whole["batch"]["payments"]["payments"]]
        for mode in ("forward", "translate"):
            await here.switch(mode)
            for payment in payments:
                got = await done(here.house, "GET", f"/payments/{payment}")
                assert got["payment"]["id"] == payment
        assert (await here.house.ask("GET", "/v1/payments/P-NOBODYS000000000")).status == 404


# Writes that were not answered


async def test_a_forwarded_write_of_unknown_outcome_is_never_sent_again(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        body = paying(recipient, "10.00")
        here.breaks_legacy("POST", "/v1/batches", close="after")
        got = await here.house.ask("POST", "/v1/batches", body)
        assert got.status == 500
        assert "outcome of this request is unknown" in got.body["errors"][0]["message"]
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        await here.switch("translate")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        assert here.asked_legacy("POST", "/v1/batches") == 1
        assert here.asked_current("POST", "/v1/batches") == 0
        other = {**body, "description": "another"}
        assert (await here.house.ask("POST", "/v1/batches", other)).status != 500


async def test_a_forwarded_write_after_one_in_doubt_says_that_nothing_was_done(
    tmp_path: Path,
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks_legacy("POST", "/v1/batches/*/start-processing", close="after")
        lost = await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert "outcome of this request is unknown" in lost.body["errors"][0]["message"]
        got = await here.house.ask("DELETE", f"/v1/batches/{batch}")
        assert (got.status, int(got.headers["Retry-After"]) > 0) == (500, True)
        assert "nothing of this request was done" in got.body["errors"][0]["message"]
        assert here.asked_legacy("DELETE", "/v1/batches/*") == 0


async def test_an_operator_says_what_became_of_it(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        body = paying(recipient, "10.00")
        here.breaks_legacy("POST", "/v1/batches", close="after")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        (lost,) = (await here.told("writes", "unsettled"))["writes"]
        assert lost["operation"] == "forwarded create_batch"
        assert "legacy service" in lost["what_to_do"]
        (made,) = (await here.directly("GET", "/v1/batches")).body["batches"]
        await here.says("writes", "settle", lost["write"], "--made", made["id"], "--yes")

        async def settled() -> bool:
            return not (await here.told("writes", "unsettled"))["writes"]

        await eventually(settled)
        await here.switch("translate")
        assert (await done(here.house, "GET", f"/batches/{made['id']}"))["batch"]["payments"]
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        assert here.asked_legacy("POST", "/v1/batches") == 1
        assert here.asked_current("POST", "/v1/batches") == 0


async def test_what_did_not_happen_may_be_sent_again(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        path = f"/v1/recipients/{recipient}/payout-methods"
        body = {
            "primary": {"method": "wallet", "currency": "USD"},
            "accounts": {"wallet": {"address": "b@example.com"}},
        }
        here.breaks_legacy("PATCH", path, close="before")
        assert (await here.house.ask("PATCH", path, body)).status == 500
        changed = {"language": "de"}
        got = await here.house.ask("PATCH", f"/v1/recipients/{recipient}", changed)
        assert got.status == 500, "the next write on it would be before the lost one, or after it"
        await lapse(here)
        (lost,) = (await here.told("writes", "unsettled"))["writes"]
        assert f"PATCH /recipients/{recipient}/payout-methods" in lost["what_to_do"]
        await here.says("writes", "settle", lost["write"], "--did-not-happen", "--yes")

        async def settled() -> bool:
            return not (await here.told("writes", "unsettled"))["writes"]

        await eventually(settled)
        assert (await here.house.ask("PATCH", path, body)).status == 200
        assert (await here.house.ask("PATCH", f"/v1/recipients/{recipient}", changed)).status == 200


async def test_what_did_not_happen_there_keeps_no_batch_there(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        path = "/v1/batches/B-1234567890123456/start-processing"
        here.breaks_legacy("POST", path, close="before")
        assert (await here.house.ask("POST", path)).status == 500
        (owner,) = (await here.told("modes", "list"))["begun_at_legacy"]
        assert owner["batches"] == 1
        await lapse(here)
        (lost,) = (await here.told("writes", "unsettled"))["writes"]
        await here.says("writes", "settle", lost["write"], "--did-not-happen", "--yes")

        async def is_nowhere() -> bool:
            return (await here.told("modes", "list"))["begun_at_legacy"] == []

        await eventually(is_nowhere)


async def lapse(here: Valley) -> None:
    await Post(here.house, here.current, here.ticks, here.folder).lapse()


async def test_the_retry_of_a_translated_write_is_not_forwarded(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        recipient = await make_recipient(here.house)
        body = paying(recipient, "10.00")
        here.current.faults.append(Fault("POST", "/v1/batches", close="after"))
        with no_reading_at_once():
            assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        await here.switch("forward")

        async def found_out() -> bool:
            return (await here.house.ask("POST", "/v1/batches", body)).status == 200

        await eventually(found_out)
        assert here.asked_legacy("POST", "/v1/batches") == 0
        assert here.asked_current("POST", "/v1/batches") == 1


async def test_what_never_left_may_be_sent_again(tmp_path: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with open_valley(tmp_path, legacy_url=url) as here:
        await here.says("modes", "set", "--key", NAME, "forward", "--yes")

        async def unreachable() -> bool:
            return (await here.house.ask("GET", "/v1/recipients")).status == 500

        await eventually(unreachable)
        got = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (got.status, "nothing was changed" in got.text) == (500, True)
        path = "/v1/batches/B-1234567890123456/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        assert (await here.told("writes", "unsettled"))["writes"] == []
        # An unreachable service must not bind a batch that it never received.
        assert (await here.told("modes", "list"))["begun_at_legacy"] == []


async def test_a_freeze_holds_for_what_is_forwarded(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        await here.says("freeze", "--all")
        got = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (got.status, got.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert here.asked_legacy("POST", "/v1/recipients") == 0
        assert (await here.house.ask("GET", "/v1/recipients")).status == 200
        # Nothing was sent, so the batch is bound to neither service.
        path = "/v1/batches/B-1234567890123456/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        assert (await here.told("modes", "list"))["begun_at_legacy"] == []


@pytest.mark.parametrize("status", [502, 524])
async def test_a_proxys_word_is_no_answer_to_a_write(status: int, tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        here.breaks_legacy("POST", "/v1/recipients", status=status, body=b"<html>")
        got = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (got.status, got.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert len((await here.told("writes", "unsettled"))["writes"]) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>hello</html>"),
        (200, b'{"ok":true,"batch":{"id":"B-'),
        (200, b""),
        (418, b"<html>tea</html>"),
        (500, b'{"ok":false}'),
        (503, b"<html>later</html>"),
    ],
)
async def test_any_response_of_the_legacy_service_to_a_write_is_passed_on(
    status: int, body: bytes, tmp_path: Path
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        here.breaks_legacy("POST", "/v1/batches", status=status, body=body)
        async with here.house.session.post(
            f"{here.house.running.url}/v1/batches",
            json=paying("R-1", "10.00"),
            headers={"X-API-Key": API_KEY},
            allow_redirects=False,
        ) as got:
            assert (got.status, await got.read()) == (status, body)
        assert (await here.told("writes", "unsettled"))["writes"] == []
        assert here.asked_legacy("POST", "/v1/batches") == 1


@pytest.mark.parametrize(("status", "body"), [(204, b""), (200, b"")])
async def test_a_delete_may_be_answered_without_content(
    status: int, body: bytes, tmp_path: Path
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        path = f"/v1/recipients/{await make_recipient(here.house)}"
        here.breaks_legacy("DELETE", path, status=status, body=body, executes=True)
        async with here.house.session.delete(
            f"{here.house.running.url}{path}", headers={"X-API-Key": API_KEY}
        ) as got:
            assert (got.status, await got.read()) == (status, body)
        assert (await here.told("writes", "unsettled"))["writes"] == []


async def test_a_client_that_went_away_gets_the_answer_of_its_first_try(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        body = paying(recipient, "10.00")
        here.breaks_legacy("POST", "/v1/batches", answer_delay=0.6)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await here.house.ask("POST", "/v1/batches", body)
        answers: list[Any] = []

        async def answered() -> bool:
            answers.append(await here.house.ask("POST", "/v1/batches", body))
            return bool(answers[-1].status == 200)

        await eventually(answered)
        assert {one.status for one in answers} <= {200, 500}
        (batch,) = here.legacy.world().batches.values()
        assert answers[-1].body["batch"]["amount"] == "10.00"
        assert here.asked_legacy("POST", "/v1/batches") == 1
        assert batch.state == "open"
        # The first request is answered now: an identical one is a new request.
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 200
        assert here.asked_legacy("POST", "/v1/batches") == 2


async def test_an_idempotency_key_holds_whoever_answers(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        named = {"Idempotency-Key": "payday"}
        first = await here.house.ask("POST", "/v1/recipients", ADA, headers=named)
        assert first.status == 200
        for mode in ("forward", "translate"):
            await here.switch(mode)
            again = await here.house.ask("POST", "/v1/recipients", ADA, headers=named)
            assert (again.status, again.body) == (200, first.body)
            other = {**ADA, "lastName": "King"}
            got = await here.house.ask("POST", "/v1/recipients", other, headers=named)
            assert (got.status, got.body["errors"][0]["field"]) == (406, "Idempotency-Key")
        assert here.asked_legacy("POST", "/v1/recipients") == 1
        assert here.asked_current("POST", "/v1/recipients") == 0


@pytest.mark.parametrize("status", [403, 429, 500])
async def test_an_idempotency_key_is_free_again_where_what_was_refused_may_be_done_later(
    status: int, tmp_path: Path
) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down."}]}'
        here.breaks_legacy("POST", "/v1/recipients", status=status, body=refusal)
        named = {"Idempotency-Key": "payday"}
        first = await here.house.ask("POST", "/v1/recipients", ADA, headers=named)
        assert (first.status, first.text.encode()) == (status, refusal)
        again = await here.house.ask("POST", "/v1/recipients", ADA, headers=named)
        assert again.status == 200, again.text
        assert (
            await here.house.ask("POST", "/v1/recipients", ADA, headers=named)
        ).text == again.text
        assert len(here.legacy.world().recipients) == 1


async def test_what_is_forwarded_is_in_no_log_and_not_open_in_the_state(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        assert (await here.house.ask("POST", "/v1/recipients", ADA)).status == 200
        here.breaks_legacy("POST", "/v1/recipients", close="after")
        lost = {**ADA, "lastName": "Lovelace", "email": "lovelace@example.com"}
        assert (await here.house.ask("POST", "/v1/recipients", lost)).status == 500
        told = logged(tmp_path) + await here.says("writes", "unsettled")
        told += await here.says("modes", "list")
        state = (tmp_path / "gateway.db").read_bytes()
        for secret in (API_KEY, "Byron", "byron", "Lovelace", "lovelace"):
            assert secret not in told
            assert secret.encode() not in state


async def test_a_legacy_service_that_is_silent_is_told_apart_from_the_current_one(
    tmp_path: Path,
) -> None:
    sections = {"upstream": {"timeout_seconds": 10, "breaker_failures": 1}}
    async with open_valley(tmp_path, apart=True, sections=sections) as here:
        await here.switch("forward")
        here.breaks_legacy("GET", "/v1/profile/balances", close="after")
        assert (await here.house.ask("GET", "/v1/profile/balances")).status == 500
        async with here.house.session.get(f"{here.house.running.admin_url}/readyz") as answer:
            told = await answer.json()
    assert told["circuit_breakers"] == {"sandbox": "closed", "legacy sandbox": "open"}
    (line,) = [one for one in logged(tmp_path).splitlines() if "circuit_breaker_opened" in one]
    assert re.search("service=\\S*legacy", line)


async def test_a_write_that_was_given_up_while_it_waited_for_a_connection_does_not_leave(
    tmp_path: Path,
) -> None:
    """After a long pause of its process, an operator may have settled the write as not sent."""
    sections = {"upstream": {"connections": 1, "timeout_seconds": 5}, "gone_seconds": 0.4}
    async with open_valley(tmp_path, apart=True, sections=sections) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        here.breaks_legacy("POST", "/v1/batches", answer_delay=2)
        first = asyncio.ensure_future(make_batch(here.house, recipient, "1.00"))
        await until(lambda: len(here.legacy.world().batches) == 1)
        second = asyncio.ensure_future(
            here.house.ask("POST", "/v1/batches", paying(recipient, "2.00"))
        )
        async with open_store(here.house.settings.state) as store:
            rows = OperationRepository(store, Ledger(store))

            async def both_wait() -> bool:
                return len(await rows.unfinished()) == 2

            await eventually(both_wait)
            await asyncio.sleep(0.3)
            _, waits = await rows.unfinished()
            assert await rows.take(waits, "another")
        got = await second
        assert got.status == 500
        assert "unknown" in got.body["errors"][0]["message"]
        assert await first
        assert len(here.legacy.world().batches) == 1
