"""Writes that were sent but not answered: their outcome is read, and they are never sent twice."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault, Service, Simulator, Switches, start
from gateway.writes import steps
from tests.house import Got, House, open_house
from tests.operating import Post, Ticks, eventually, no_reading_at_once, post
from tests.payday import WALLET, done, make_batch, make_recipient, payment_ids
from tests.sockets import until

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
PAYOUT = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {
        "bank": {
            "country": "US",
            "currency": "USD",
            "accountNum": "1234567",
            "routing": "021000021",
        }
    },
}


@dataclass
class Town:
    house: House
    service: Service
    ticks: Ticks

    def breaks(self, method: str, path: str, **what: Any) -> None:
        self.service.faults.append(Fault(method, path, **what))

    def waits(self) -> None:
        """Advances the clock until no sent call can be executed any more."""
        self.ticks.ahead += 60

    def sent(self, method: str, path: str) -> int:
        return len(self.service.calls(method, path))


@asynccontextmanager
async def town(
    folder: Path,
    seconds: float = 3,
    *,
    writes: Any = None,
    sees_at_once: bool = False,
    **switches: Any,
) -> AsyncIterator[Town]:
    service = Service(switches=Switches(**switches), seed=1)
    simulator: Simulator = await start(service=service)
    ticks = Ticks()
    try:
        upstream = {"timeout_seconds": seconds}
        sections = {"upstream": upstream, "writes": writes or {}}
        async with open_house(folder, simulator.url, ticks, **sections) as house:
            with nullcontext() if sees_at_once else no_reading_at_once():
                yield Town(house, service, ticks)
    finally:
        await simulator.stop()


BROKEN = [
    pytest.param({"close": "after"}, id="the connection drops after it was executed"),
    pytest.param({"answer_delay": 3}, id="the answer does not come in time"),
    pytest.param({"status": 200, "body": b'{"ok":tr', "executes": True}, id="half an answer comes"),
    pytest.param({"status": 502, "body": b"<html>", "executes": True}, id="a proxy's page comes"),
    pytest.param({"status": 401, "body": b"<html>", "executes": True}, id="a proxy's login comes"),
]


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_create_that_happened_is_adopted_and_its_answer_given_to_the_retry(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        here.breaks("POST", "/v1/recipients", **fault)
        first = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (first.status, first.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert "unknown" in first.body["errors"][0]["message"]
        again = await here.house.ask("POST", "/v1/recipients", ADA)
        assert again.status == 200, again.text
        listed = await here.house.ask("GET", "/v1/recipients")
        assert [one["id"] for one in listed.body["recipients"]] == [again.body["recipient"]["id"]]
        assert here.service.created["recipient"] == 1
        assert here.sent("POST", "/v1/recipients") <= 1  # one that is still held up is not counted


@pytest.mark.parametrize("fault", [{"close": "before"}, {"status": 524, "body": b"<html>"}])
async def test_a_create_that_did_not_happen_is_sent_again_only_when_that_is_sure(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        here.breaks("POST", "/v1/recipients", **fault)
        first = await here.house.ask("POST", "/v1/recipients", ADA)
        assert first.status == 500
        again = await here.house.ask("POST", "/v1/recipients", ADA)
        assert again.status == 500
        assert 1 <= int(again.headers["Retry-After"]) <= 60
        assert here.sent("POST", "/v1/recipients") == 1
        here.waits()
        last = await here.house.ask("POST", "/v1/recipients", ADA)
        assert last.status == 200, last.text
        assert here.service.created["recipient"] == 1


async def test_identical_requests_are_two_if_the_first_was_delivered(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        for _ in range(2):
            assert (await here.house.ask("POST", "/v1/recipients", ADA)).status == 200
        both = await asyncio.gather(
            *(here.house.ask("POST", "/v1/recipients", ADA) for _ in range(2))
        )
        assert [one.status for one in both] == [200, 200]
        assert sorted("Idempotent-Replayed" in one.headers for one in both) == [False, True]
        assert here.service.created["recipient"] == 3


async def test_delayed_acknowledgement_makes_no_retry(tmp_path: Path) -> None:
    """Linux acknowledges the third response on a connection up to 40 ms later than it is read."""
    async with town(tmp_path) as here:

        def send(*, times: int) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", here.house.running.port)
            for _ in range(times):
                headers = {"X-API-Key": here.house.api_key, "Content-Type": "application/json"}
                connection.request("POST", "/v1/recipients", json.dumps(ADA), headers)
                response = connection.getresponse()
                assert response.read()
                assert (response.status, response.getheader("Idempotent-Replayed")) == (200, None)
            return connection

        first = await asyncio.to_thread(send, times=3)
        (await asyncio.to_thread(send, times=1)).close()
        first.close()
        assert here.service.created["recipient"] == 4


async def test_identical_requests_in_flight_are_two_if_the_setting_says_so(tmp_path: Path) -> None:
    separate = {"identical_in_flight": "separate"}
    async with town(tmp_path, writes=separate) as here:
        here.breaks("POST", "/v1/recipients", answer_delay=0.5)
        both = await asyncio.gather(
            *(here.house.ask("POST", "/v1/recipients", ADA) for _ in range(2))
        )
        assert [one.status for one in both] == [200, 200]
        assert here.service.created["recipient"] == 2


async def test_waiter_becomes_the_request_if_the_first_was_refused(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Later"}]}'
        here.breaks("POST", "/v1/recipients", status=429, body=refusal, delay=0.5)
        both = await asyncio.gather(
            *(here.house.ask("POST", "/v1/recipients", ADA) for _ in range(2))
        )
        assert sorted(one.status for one in both) == [200, 429]
        assert here.service.created["recipient"] == 1


async def test_identical_request_after_its_response_is_a_retry_for_replay_seconds(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, writes={"replay_seconds": 60}) as here:
        first, again = [await here.house.ask("POST", "/v1/recipients", ADA) for _ in range(2)]
        assert (first.status, again.status) == (200, 200)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert here.service.created["recipient"] == 1


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_request_is_a_retry_after_its_acknowledged_response_was_reset(
    connection: str, tmp_path: Path
) -> None:
    """The client's machine has the response; the client gives up without reading it."""
    async with town(tmp_path) as here:
        body = json.dumps(ADA).encode()
        head = (
            "POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            f"Connection: {connection}\r\nX-API-Key: {here.house.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", here.house.running.port)) as client:
            client.sendall(head.encode() + body)
            await asyncio.to_thread(select.select, [client], [], [], 10)
            await asyncio.sleep(0.3)
        # Closed with unread data: a reset.
        again = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (again.status, again.headers.get("Idempotent-Replayed")) == (200, "true")
        assert here.service.created["recipient"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "body": b"<html>upstream connect error</html>", "executes": True},
        {"close": "after"},
    ],
)
async def test_lost_write_that_happened_is_confirmed_at_once(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    async with town(tmp_path, sees_at_once=True) as here:
        here.breaks("POST", "/v1/recipients", **fault)
        got = await here.house.ask("POST", "/v1/recipients", ADA)
        assert (got.status, got.body["recipient"]["email"]) == (200, ADA["email"])
        assert here.service.created["recipient"] == 1


async def test_two_identical_creates_of_which_one_was_lost_are_told_apart(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        assert (await here.house.ask("POST", "/v1/recipients", ADA)).status == 200
        here.breaks("POST", "/v1/recipients", close="before")
        assert (await here.house.ask("POST", "/v1/recipients", ADA)).status == 500
        here.waits()
        assert (await here.house.ask("POST", "/v1/recipients", ADA)).status == 200
        assert here.service.created["recipient"] == 2


async def test_a_start_that_was_not_answered_is_read_before_anything_is_sent_again(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", close="after")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        again = await here.house.ask("POST", path)
        assert (again.status, again.body["batch"]["status"]) == (200, "processing")
        assert len(here.service.starts) == 1
        assert here.sent("POST", "/v1/batches/*/start-processing") == 1
        third = await here.house.ask("POST", path)
        assert third.body["errors"][0]["code"] == "invalid_status"


async def test_the_next_write_on_a_batch_settles_the_one_before(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", close="before")
        assert (await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")).status == 500
        early = await here.house.ask("DELETE", f"/v1/batches/{batch}")
        says_that_it_can_be_sent_again(early)
        started_again = await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert "is unknown" in started_again.body["errors"][0]["message"]
        here.waits()
        late = await here.house.ask("DELETE", f"/v1/batches/{batch}")
        assert late.status == 200, late.text
        assert here.service.starts == []


def says_that_it_can_be_sent_again(got: Got) -> None:
    """The response to a request of which nothing was sent, because another write is in doubt."""
    (error,) = got.body["errors"]
    assert (got.status, error["code"]) == (500, "internal_server_error"), got.text
    assert int(got.headers["Retry-After"]) > 0
    assert "another write" in error["message"]
    assert "nothing of this request was done" in error["message"]
    assert "is unknown" not in error["message"]


async def test_a_write_on_payout_methods_after_one_in_doubt_says_that_nothing_was_done(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as here:
        made = await here.house.ask("POST", "/v1/recipients", ADA)
        path = f"/v1/recipients/{made.body['recipient']['id']}/payout-methods"
        here.breaks("POST", "/v1/recipients/*/accounts", close="before")
        lost = await here.house.ask("POST", path, PAYOUT)
        assert "is unknown" in lost.body["errors"][0]["message"]
        says_that_it_can_be_sent_again(await here.house.ask("POST", path, WALLET))
        assert here.sent("POST", "/v1/recipients/*/accounts") == 1
        here.waits()
        assert (await here.house.ask("POST", path, WALLET)).status == 200


@pytest.mark.parametrize("drafted", [False, True], ids=["created", "of a draft"])
async def test_a_lost_batch_may_exist_where_the_service_lists_none(
    drafted: bool, tmp_path: Path
) -> None:
    """It pays nobody before its start: a retry makes another, and an operator is told of it."""
    async with post(tmp_path, inferred=False) as here:
        recipient = await make_recipient(here.house)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        asked: tuple[Any, ...] = ("POST", "/v1/batches", body)
        if drafted:
            batch = (await here.house.ask(*asked)).body["batch"]["id"]
            (payment,) = await payment_ids(here.house, batch)
            change = {"sourceAmount": "11.00"}
            await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
            asked = ("POST", f"/v1/batches/{batch}/start-processing")
        before = set(here.service.world().batches)
        listed = (await here.told("batches", "abandoned"))["batches"]
        here.breaks("POST", "/v1/batches", close="after")
        refused = await here.house.ask(*asked)
        assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (500, True)
        (lost,) = set(here.service.world().batches) - before
        sent = here.sent("POST", "/v1/batches")
        assert (await here.house.ask(*asked)).status == 500, "it may still be carried out"
        assert here.sent("POST", "/v1/batches") == sent
        assert (await here.told("batches", "abandoned"))["batches"] == listed
        await here.lapse()

        async def is_made() -> bool:
            return (await here.house.ask(*asked)).status == 200

        await eventually(is_made, 40)
        assert here.sent("POST", "/v1/batches") == sent + 1
        assert (await here.told("writes", "unsettled"))["writes"] == []
        told = (await here.told("batches", "abandoned"))["batches"]
        (unseen,) = [one for one in told if one["abandoned"] is None]
        assert refused.headers["X-Request-Id"] in unseen["what_to_do"]
        assert "never start it" in unseen["what_to_do"]
        assert lost not in [one.batch_id for one in here.service.starts]


async def test_a_lost_batch_is_found_in_the_service_s_list(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await make_batch(here.house, recipient, "10.00")
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        here.breaks("POST", "/v1/batches", close="after")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        again = await here.house.ask("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        assert again.body["batch"]["amount"] == "10.00"
        assert here.service.created["batch"] == 2


@pytest.mark.parametrize(
    "unreadable", [b'{"ok":true}', b'{"ok":true,"data":[]}', b'{"ok":true,"batches":{}}']
)
async def test_a_list_that_cannot_be_read_does_not_show_that_a_lost_batch_is_not_there(
    unreadable: bytes, tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        recipient = await make_recipient(here.house)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        here.breaks("GET", "/v1/batches", status=200, body=unreadable, times=10_000)
        here.breaks("POST", "/v1/batches", close="after")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        here.waits()
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        assert here.service.created["batch"] == 1
        here.service.faults.clear()
        again = await here.house.ask("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        assert here.service.created["batch"] == 1


async def test_a_lost_change_is_seen_where_its_target_amount_is_in_the_batches_own_currency(
    tmp_path: Path,
) -> None:
    """The payment arrives in the account's currency; it was added, and paid, twice."""
    async with town(tmp_path) as here:
        recipient = await make_recipient(here.house)
        path = f"/v1/recipients/{recipient}/payout-methods"
        in_euros = {
            "primary": {"method": "bank", "currency": "EUR"},
            "accounts": {"bank": {"country": "DE", "iban": "DE89370400440532013000"}},
        }
        assert (await here.house.ask("POST", path, in_euros)).status == 200
        batch = f"/v1/batches/{await make_batch(here.house, recipient, '10.00')}"
        one = {"recipient": {"id": recipient}, "targetAmount": "7.00", "targetCurrency": "USD"}
        here.breaks("PATCH", "/v1/batches/*", close="after")
        assert (await here.house.ask("PATCH", batch, {"payments": [one]})).status == 500
        here.waits()
        again = await here.house.ask("PATCH", batch, {"payments": [one]})
        assert again.status == 200, again.text
        assert here.service.created["payment"] == 2
        assert here.sent("PATCH", "/v1/batches/*") == 1


async def test_a_payout_whose_answer_was_lost_is_carried_on_without_its_client(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as here:
        here.breaks("POST", "/v1/recipients/*/accounts", close="after")
        body = {**ADA, "payout": PAYOUT}
        assert (await here.house.ask("POST", "/v1/recipients", body)).status == 500
        await until(lambda: here.sent("GET", "/v1/recipients/*") > 0)
        again = await here.house.ask("POST", "/v1/recipients", body)
        assert again.status == 200, again.text
        assert again.body["recipient"]["payout"]["accounts"]["bank"]["accountNum"].endswith("67")
        assert here.service.created["account"] == here.service.created["recipient"] == 1


async def settled_under_another_version(here: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits until no write is in doubt; then changes the steps of all flows."""

    async def is_settled() -> bool:
        return await here.told("writes", "unsettled") == {"writes": []}

    await eventually(is_settled)
    mark = steps.mark
    monkeypatch.setattr(steps, "mark", lambda step: f"changed {mark(step)}")


@pytest.mark.parametrize("count", [1, 3000])
async def test_what_was_settled_is_answered_to_a_retry_after_its_flow_has_changed(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post(tmp_path, seconds=10) as here:
        payment = {"recipient": {"id": await make_recipient(here.house)}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [{**payment, "memo": "m" * 100}] * count}
        here.breaks("POST", "/v1/batches", close="after")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        await settled_under_another_version(here, monkeypatch)
        again = await here.house.ask("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        assert again.text.startswith('{"ok":true,"batch":{"id":"B-')
        assert again.body["batch"]["totalPayments"] == count
        shown = await here.house.ask("GET", f"/v1/batches/{again.body['batch']['id']}")
        assert shown.body["batch"]["amount"] == again.body["batch"]["amount"] == f"{count * 10}.00"
        assert here.service.created["batch"] == 1


async def test_what_was_settled_is_answered_in_the_spelling_of_the_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        (current,) = (id_ for world in here.service.worlds.values() for id_ in world.batches)
        assert current != batch
        here.breaks("POST", "/v1/batches/*/start-processing", close="after")
        path = f"/v1/batches/{current}/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        await settled_under_another_version(here, monkeypatch)
        again = await here.house.ask("POST", path)
        assert (again.status, again.body["batch"]["id"]) == (200, current), again.text
        assert len(here.service.starts) == 1


async def test_an_idempotency_key_gives_the_first_answer_again(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        key = {"Idempotency-Key": "payday-1"}
        first = await here.house.ask("POST", "/v1/recipients", ADA, headers=key)
        again = await here.house.ask("POST", "/v1/recipients", ADA, headers=key)
        assert first.status == again.status == 200
        assert first.text == again.text
        assert here.service.created["recipient"] == 1
        other = await here.house.ask(
            "POST", "/v1/recipients", {**ADA, "firstName": "Augusta"}, headers=key
        )
        assert (other.status, other.body["errors"][0]["code"]) == (406, "invalid_field")
        both = await asyncio.gather(
            *(
                here.house.ask(
                    "POST", "/v1/recipients", ADA, headers={"Idempotency-Key": "payday-2"}
                )
                for _ in range(3)
            )
        )
        assert len({one.text for one in both}) == 1
        assert here.service.created["recipient"] == 2


async def test_a_client_that_went_away_finds_its_answer_when_it_comes_again(tmp_path: Path) -> None:
    async with town(tmp_path, 5) as here:
        here.breaks("POST", "/v1/recipients", answer_delay=0.5)
        asking = asyncio.ensure_future(here.house.ask("POST", "/v1/recipients", ADA))
        await until(lambda: here.service.created["recipient"] == 1)
        asking.cancel()
        await asyncio.sleep(0.1)
        again = await here.house.ask("POST", "/v1/recipients", ADA)
        assert again.status == 200, again.text
        assert here.service.created["recipient"] == 1


async def test_a_client_that_went_away_before_anything_was_sent_is_served_when_it_comes_again(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, 5) as here:
        recipient = await make_recipient(here.house)
        body = {
            "sourceCurrency": "USD",
            "payments": [
                {"recipient": {"email": "ada@example.com"}, "sourceAmount": "10.00"},
                {"recipient": {"id": recipient}, "sourceAmount": "10.00"},
            ],
        }
        here.breaks("GET", "/v1/recipients", answer_delay=0.5)
        asking = asyncio.ensure_future(here.house.ask("POST", "/v1/batches", body))
        await asyncio.sleep(0.2)
        asking.cancel()
        again = await here.house.ask("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        await asyncio.sleep(0.5)
        assert here.service.created["batch"] == 1
