"""`payout-gateway writes`: what is unsettled, and what an operator found out of it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from gateway.cli import gateway
from gateway.operator.in_doubt_writes import CHANGE_DESCRIPTIONS, CREATED_OBJECTS
from gateway.payloads import stored_json
from gateway.simulator import Fault, Service, Switches, start
from gateway.storage import Ledger
from gateway.storage.audit_log import operator
from gateway.storage.tables import journal_steps
from gateway.storage.undertakings import OperationRepository, _place
from gateway.writes import settling
from mappings.current import ENDPOINTS
from tests.house import KEY, import_lines, settings_for
from tests.operating import LOST, Post, eventually, lose_a_batch, post
from tests.payday import WALLET, make_batch, make_recipient
from tests.processes import command, configuration, serving
from tests.sockets import until
from tests.states import execute, fetch

SETTLE = ("writes", "settle")
ADA = {"type": "individual", "firstName": "Ada", "lastName": "Byron", "email": "byron@example.com"}


async def those(here: Post) -> list[dict[str, Any]]:
    return (await here.told("writes", "unsettled"))["writes"]


async def only(here: Post) -> dict[str, Any]:
    (one,) = await those(here)
    return one


async def is_settled(here: Post) -> bool:
    return not await those(here)


async def says_why(here: Post, words: str) -> bool:
    return any(words in one["why"] for one in await those(here))


async def is_sent(here: Post) -> bool:
    async with here.store() as store:
        rows = OperationRepository(store, Ledger(store))
        its = await rows.writes_of(*(one.id for one in await rows.unfinished()))
    return any(write.state == "sent" for some in its.values() for write in some)


# What is listed.


async def test_nothing_is_unsettled_at_first(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        assert await here.told("writes", "unsettled") == {"writes": []}
        assert (await here.says("writes", "unsettled")).stdout == "No write is in doubt.\n"


async def test_a_lost_create_is_listed_with_all_that_is_known_and_what_to_do(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        await eventually(lambda: says_why(here, "the service lists no batches"))
        one = await only(here)
        assert re.fullmatch(r"[0-9a-f]{12}\.\d+", one["write"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", one["since"])
        assert (one["merchant"], one["environment"]) == ("demo", "sandbox")
        assert (one["operation"], one["key"]) == ("create_batch", "demo-sandbox")
        assert (one["method"], one["path"], one["object"]) == ("POST", "/batches", None)
        assert (one["state"], one["told"]) == ("sent", None)
        assert f"writes settle {one['write']} --made B-…" in one["what_to_do"]
        assert "a batch of 1 payment that was created at about" in one["what_to_do"]
        said = (await here.says("writes", "unsettled")).stdout
        for word in (one["write"], "POST /batches", "demo sandbox", "dashboard"):
            assert word in said


async def test_a_write_is_listed_by_the_id_that_clients_know_its_object_by(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", close="before")
        await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
        one = await only(here)
        assert one["object"] == batch
        assert one["path"] != f"/batches/{batch}/start-processing", "the service's own is longer"
        assert "--happened`" in one["what_to_do"]


async def test_what_is_being_carried_out_at_this_moment_is_not_listed(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=30) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", delay=15)
        path = f"/v1/batches/{batch}/start-processing"
        starting = asyncio.ensure_future(here.house.ask("POST", path))
        await eventually(lambda: is_sent(here))
        assert await those(here) == []
        starting.cancel()


def test_every_write_of_the_current_interface_has_words_for_an_operator() -> None:
    known = {f"POST {path}" for path in CREATED_OBJECTS} | CHANGE_DESCRIPTIONS.keys()
    assert known == {f"{one.method} {one.path}" for one in ENDPOINTS if one.method != "GET"}


# What an operator found out.


async def test_what_it_made_is_adopted_and_the_retry_gets_the_answer_of_the_first_try(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=False) as here:
        body = await lose_a_batch(here)
        write = (await only(here))["write"]
        (made,) = here.service.world().batches
        told = await here.told(*SETTLE, write, "--made", made, "--yes")
        assert told == {"write": write, "told": made}
        await eventually(lambda: is_settled(here))
        again = await here.house.ask("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        assert (again.body["batch"]["amount"], again.body["batch"]["totalPayments"]) == ("10.00", 1)
        assert here.service.created["batch"] == here.sent("POST", "/v1/batches") == 1
        refused = await here.says(*SETTLE, write, "--made", made, "--yes", code=2)
        assert "is already known: happened" in refused.stderr


async def test_what_was_told_is_taken_into_account_however_long_the_pause_has_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_minutes = SimpleNamespace(uniform=lambda _least, _most: 300)
    monkeypatch.setattr(settling, "random", for_minutes)
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        await eventually(lambda: says_why(here, "the service lists no batches"))
        write = (await only(here))["write"]
        (made,) = here.service.world().batches
        await here.says(*SETTLE, write, "--made", made, "--yes")
        await eventually(lambda: is_settled(here), 15)


async def test_what_did_not_happen_is_sent_again_when_its_client_asks_again(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        payment = {"recipient": {"id": await make_recipient(here.house)}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        here.breaks("POST", "/v1/batches", close="before")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
        write = (await only(here))["write"]
        early = await here.says(*SETTLE, write, "--did-not-happen", "--yes", code=2)
        assert "may still be carried out; check again in" in early.stderr
        await here.lapse()
        await here.says(*SETTLE, write, "--did-not-happen", "--yes")
        await eventually(lambda: is_settled(here))
        traced = (await here.says("trace", write)).stdout
        assert f"POST /batches  did not happen (recorded by {operator()})" in traced
        assert ", did not happen\n" in traced, "of the request"
        assert f"{operator()} told of {write}: did not happen: " in traced
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 200
        assert here.service.created["batch"] == 1


async def test_what_can_be_seen_to_have_happened_counts_whatever_was_told(tmp_path: Path) -> None:
    async with post(tmp_path, processing_seconds=600) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        path = f"/v1/batches/{batch}/start-processing"
        here.breaks("POST", "/v1/batches/*/start-processing", **LOST)
        here.breaks("GET", "/v1/batch/*/summary")  # the start's own look is answered
        here.breaks("GET", "/v1/batch/*/summary", status=503, times=1000)
        assert (await here.house.ask("POST", path)).status == 500
        await eventually(lambda: says_why(here, "could not be read (status 503)"))
        write = (await only(here))["write"]
        await here.lapse()
        here.service.faults.clear()
        await here.says(*SETTLE, write, "--did-not-happen", "--yes")
        await eventually(lambda: is_settled(here))
        again = await here.house.ask("POST", path)
        assert again.body["batch"]["status"] == "processing", again.text
        assert len(here.service.starts) == 1


async def test_a_change_that_was_told_to_have_happened_lets_its_flow_go_on(tmp_path: Path) -> None:
    """The flow needs the recipient that the service would have answered with."""
    async with post(tmp_path) as here:
        here.breaks("PATCH", "/v1/recipients/*", **LOST)
        here.breaks("GET", "/v1/recipients/*", status=503, times=1000)
        body = {**ADA, "language": "en", "payout": WALLET}
        assert (await here.house.ask("POST", "/v1/recipients", body)).status == 500
        await eventually(lambda: says_why(here, "could not be read"))
        write = (await only(here))["write"]
        await here.says(*SETTLE, write, "--happened", "--yes")
        await asyncio.sleep(2)
        assert not await is_settled(here), "without the recipient it cannot go on"
        said = (await here.says("writes", "unsettled")).stdout
        assert "recorded:    happened" in said
        assert "what to do:  nothing: a running gateway continues" in said
        here.service.faults.clear()
        await eventually(lambda: is_settled(here))
        again = await here.house.ask("POST", "/v1/recipients", body)
        assert again.status == 200, again.text
        assert again.body["recipient"]["payout"]["accounts"]["wallet"]["address"]
        assert here.service.created["recipient"] == here.service.created["account"] == 1


LOSSES = {
    "a recipient": ("POST", "/v1/recipients", ADA, "recipients"),
    "an account": ("POST", "/v1/recipients/*/accounts", {**ADA, "payout": WALLET}, "accounts"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
async def test_what_a_lost_create_of_a_recipient_made_can_be_told(
    loss: tuple[str, str, dict[str, Any], str], tmp_path: Path
) -> None:
    method, path, body, what = loss
    async with post(tmp_path) as here:
        here.breaks(method, path, **LOST)
        here.breaks("GET", "/v1/recipients", status=503, times=1000)
        here.breaks("GET", "/v1/recipients/*", status=503, times=1000)
        assert (await here.house.ask("POST", "/v1/recipients", body)).status == 500
        await eventually(lambda: says_why(here, "could not be read"))
        write = (await only(here))["write"]
        (recipient,) = here.service.world().recipients.values()
        made = recipient.id if what == "recipients" else recipient.accounts[0].id
        await here.says(*SETTLE, write, "--made", made, "--yes")
        here.service.faults.clear()
        await eventually(lambda: is_settled(here))
        again = await here.house.ask("POST", "/v1/recipients", body)
        assert again.body["recipient"]["id"], again.text
        assert here.service.created["recipient"] == 1
        assert here.service.created["account"] == (what == "accounts")


async def test_a_payment_that_was_told_to_be_the_one_is_shown(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        here.breaks("POST", "/v1/batches/*/payments", **LOST)
        here.breaks("GET", "/v1/batch/*/summary")
        here.breaks("GET", "/v1/batch/*/summary", status=503, times=1000)
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (await here.house.ask("POST", f"/v1/batches/{batch}/payments", body)).status == 500
        await eventually(lambda: says_why(here, "could not be read"))
        write = (await only(here))["write"]
        (held,) = here.service.world().batches.values()
        first, new = held.payments
        here.service.faults.clear()
        await here.says(*SETTLE, write, "--made", new, "--yes")
        await eventually(lambda: is_settled(here))
        again = await here.house.ask("POST", f"/v1/batches/{batch}/payments", body)
        assert (again.status, again.body["payment"]["sourceAmount"]) == (200, "7.00")
        assert first != new
        assert here.service.created["payment"] == 2


# What is not taken.


async def test_what_was_mistyped_is_not_believed(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        recipient = await make_recipient(here.house)
        other = await make_batch(here.house, recipient, "99.00")
        (known_already,) = here.service.world().batches
        body = await lose_a_batch(here, recipient)
        write = (await only(here))["write"]
        known = await here.says(*SETTLE, write, "--made", other, "--yes", code=2)
        assert "was created by another write" in known.stderr
        nobody = "B-0000000000000000000000"
        await here.says(*SETTLE, write, "--made", nobody, "--yes")
        await eventually(lambda: says_why(here, f"no batch {nobody}, named by the operator"))
        to_do = (await only(here))["what_to_do"]
        assert to_do.startswith(
            "the recorded outcome cannot be right: look in the service's dashboard"
        )
        assert f"writes settle {write} --made B-…" in to_do
        batches = here.service.world().batches
        odd = next(one for id_, one in batches.items() if id_ != known_already)
        payments = dict(odd.payments)
        odd.payments.clear()
        await here.says(*SETTLE, write, "--made", odd.id, "--yes")
        await eventually(lambda: says_why(here, "pays something else"))
        odd.payments.update(payments)
        await here.says(*SETTLE, write, "--made", odd.id, "--yes")
        assert (await here.house.ask("POST", "/v1/batches", body)).status == 200


async def test_what_cannot_be_said_of_a_write_is_refused_in_one_line(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        write = (await only(here))["write"]
        refused = {
            "give its id with --made B-…": (write, "--happened"),
            "must be B-": (write, "--made", "R-0123456789"),
            "followed by letters and digits": (write, "--made", "B-…"),
            "there is no write 000000000000.1": ("000000000000.1", "--happened"),
            "there is no write nonsense": ("nonsense", "--happened"),
            "give exactly one of": (write,),
            "one of --happened": (write, "--happened", "--did-not-happen"),
        }
        for said, words in refused.items():
            done = await here.says(*SETTLE, *words, "--yes", code=2)
            assert said in done.stderr
            assert done.stdout == ""
        unasked = await here.says(*SETTLE, write, "--made", "B-1", code=2)
        assert "not confirmed: no answer was given" in unasked.stderr
        assert (await only(here))["told"] is None


async def test_who_said_what_of_a_write_is_kept(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        write = (await only(here))["write"]
        (made,) = here.service.world().batches
        await here.says(*SETTLE, write, "--made", made, "--yes")
        await eventually(lambda: is_settled(here))
        acts = (await here.told("trace", made))["acts"]
        said = f"happened (recorded by {operator()}), made {made}"
        assert said in (await here.says("trace", made)).stdout
        assert [(act["what"], act["by"]) for act in acts] == [
            (f"told of {write}: {made}", operator())
        ]
        assert acts[0]["undertaking"].startswith(write.partition(".")[0])


# What a process that was killed left.


async def test_what_a_killed_process_had_sent_is_listed_and_settled_by_the_next_one(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(processing_seconds=60))
    simulator = await start(service=service)
    (tmp_path / "gateway.toml").write_text(configuration(simulator.url))
    await import_lines(settings_for(tmp_path, simulator.url), [KEY])

    async def listed() -> list[dict[str, Any]]:
        ended = await asyncio.to_thread(command, "writes", "unsettled", "--json", folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        found: list[dict[str, Any]] = json.loads(ended.stdout)["writes"]
        return found

    async def all_are_settled() -> bool:
        return not await listed()

    try:
        headers = {"X-API-Key": KEY["api_key"]}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with serving(tmp_path) as serves:
                body = {**ADA, "payout": WALLET}
                service.faults.append(Fault("POST", "/v1/recipients", answer_delay=30))
                asking = asyncio.ensure_future(
                    session.post(f"{serves.url}/v1/recipients", json=body)
                )
                await until(lambda: service.created["recipient"] == 1)
                serves.running.kill()
                await asyncio.gather(asking, return_exceptions=True)
            (one,) = await listed()
            assert (one["state"], one["path"]) == ("sent", "/recipients")
            assert one["why"] == "the process that sent it ended before the answer came"
            async with serving(tmp_path) as serves:
                await eventually(all_are_settled, 20)
                assert service.created["recipient"] == service.created["account"] == 1
                assert await serves.ends() == 0
    finally:
        await simulator.stop()


# What cannot be carried on.


async def as_by_another_version(here: Post) -> None:
    """Has the steps that were kept be those of a flow that asks for something else."""
    async with here.store() as store:
        rows = OperationRepository(store, Ledger(store))
        (one,) = await rows.unfinished()
        for number, text in enumerate(await rows.given(one)):
            odd = [["0" * 16, outcome] for _mark, outcome in json.loads(stored_json.plain(text))]
            sealed = store.encryption.seal(json.dumps(odd), _place(one, "given"))
            those = select(journal_steps.c.number).where(journal_steps.c.undertaking == one.id)
            numbers = sorted(row.number for row in await fetch(store, those))
            that = (
                journal_steps.c.undertaking == one.id,
                journal_steps.c.number == numbers[number],
            )
            await execute(store, update(journal_steps).where(*that).values(given=sealed))


async def test_what_another_version_began_can_be_given_up_once_its_writes_are_known(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", close="before")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        await as_by_another_version(here)
        await here.lapse()
        await eventually(lambda: says_why(here, "the program has changed since"))
        write = (await only(here))["write"]
        refused = await here.says("writes", "close", write, "--yes", code=2)
        assert "it is not known whether" in refused.stderr
        await here.says(*SETTLE, write, "--did-not-happen", "--yes")
        await asyncio.sleep(2)
        assert not await is_settled(here), "it cannot be carried on"
        assert (await here.house.ask("DELETE", f"/v1/batches/{batch}")).status == 500
        await here.says("writes", "close", write, "--yes")
        assert await is_settled(here)
        assert (await here.told("reconcile"))["findings"] == []
        assert (await here.house.ask("POST", path)).status == 200
        assert len(here.service.starts) == 1
        again = await here.says("writes", "close", write, "--yes", code=2)
        assert "it does not need to be closed" in again.stderr


async def test_a_start_that_is_given_up_and_happened_is_known_to_have_been_made(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, processing_seconds=60) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "10.00")
        here.breaks("POST", "/v1/batches/*/start-processing", **LOST)
        here.breaks("GET", "/v1/batch/*/summary")
        here.breaks("GET", "/v1/batch/*/summary", status=503, times=1000)
        path = f"/v1/batches/{batch}/start-processing"
        assert (await here.house.ask("POST", path)).status == 500
        await as_by_another_version(here)
        await eventually(lambda: says_why(here, "the program has changed since"))
        here.service.faults.clear()
        write = (await only(here))["write"]
        await here.says(*SETTLE, write, "--happened", "--yes")
        await eventually(lambda: was_closed(here, write))
        assert (await here.told("reconcile"))["findings"] == []
        facts = (await here.told("trace", batch))["facts"]
        assert [known["phase"] for name, known in facts.items() if "started" in known] == ["sent"]


async def was_closed(here: Post, write: str) -> bool:
    """Unless somebody is just looking at it."""
    ended = await asyncio.to_thread(command, "writes", "close", write, "--yes", folder=here.folder)
    return ended.returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
async def test_it_is_asked_first(answer: str, code: int, tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        write = (await only(here))["write"]
        (made,) = here.service.world().batches
        words = [*SETTLE, write, "--made", made, "--config", str(tmp_path / "gateway.toml")]
        asked = await asyncio.to_thread(CliRunner().invoke, gateway, words, input=answer)
        assert asked.exit_code == code
        assert "POST /batches of demo sandbox" in asked.stderr
        assert f"made {made}?" in asked.stderr
        await asyncio.sleep(2)
        assert await is_settled(here) is (code == 0)
