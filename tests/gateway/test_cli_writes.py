"""`payout-gateway writes`: writes in doubt, and outcomes entered by operators."""

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
from gateway.simulator import Fault, Service, ServiceOptions, start_simulator
from gateway.storage import ObjectStateStore
from gateway.storage.audit_log import find_operator
from gateway.storage.operation_texts import build_context
from gateway.storage.operations import OperationRepository
from gateway.storage.tables import operation_steps
from gateway.writes import reconciler
from mappings.current import ENDPOINTS
from tests.operator_commands import (
    RESPONSE_LOST,
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    wait_until_async,
)
from tests.payouts import WALLET, create_batch, create_recipient
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.sockets import wait_until
from tests.state import execute, fetch

SETTLE_COMMAND = ("writes", "settle")
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}


async def list_in_doubt_writes(operated: OperatedGateway) -> list[dict[str, Any]]:
    return (await operated.run_json_command("writes", "unsettled"))["writes"]


async def load_only_in_doubt_write(operated: OperatedGateway) -> dict[str, Any]:
    (write,) = await list_in_doubt_writes(operated)
    return write


async def has_no_write_in_doubt(operated: OperatedGateway) -> bool:
    return not await list_in_doubt_writes(operated)


async def has_reason(operated: OperatedGateway, words: str) -> bool:
    return any(words in write["why"] for write in await list_in_doubt_writes(operated))


async def has_sent_write(operated: OperatedGateway) -> bool:
    async with operated.open_store() as store:
        rows = OperationRepository(store, ObjectStateStore(store))
        writes_by_operation = await rows.load_writes(
            *(operation.id for operation in await rows.list_unfinished())
        )
    return any(write.state == "sent" for some in writes_by_operation.values() for write in some)


# Listing.


async def test_no_write_is_in_doubt_at_first(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        assert await operated.run_json_command("writes", "unsettled") == {"writes": []}
        assert (
            await operated.run_command("writes", "unsettled")
        ).stdout == "No write is in doubt.\n"


async def test_lost_create_is_listed_with_details_and_advice(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        await lose_batch_create(operated)
        await wait_until_async(lambda: has_reason(operated, "the service lists no batches"))
        write = await load_only_in_doubt_write(operated)
        assert re.fullmatch(r"[0-9a-f]{12}\.\d+", write["write"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", write["since"])
        assert (write["merchant"], write["environment"]) == ("demo", "sandbox")
        assert (write["operation"], write["key"]) == ("create_batch", "demo-sandbox")
        assert (write["method"], write["path"], write["object"]) == ("POST", "/batches", None)
        assert (write["state"], write["told"]) == ("sent", None)
        assert f"writes settle {write['write']} --made B-…" in write["what_to_do"]
        assert "a batch of 1 payment that was created at about" in write["what_to_do"]
        output = (await operated.run_command("writes", "unsettled")).stdout
        for word in (write["write"], "POST /batches", "demo sandbox", "dashboard"):
            assert word in output


async def test_write_is_listed_by_client_id_of_its_object(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        operated.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        await operated.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        write = await load_only_in_doubt_write(operated)
        assert write["object"] == batch
        assert write["path"] != f"/batches/{batch}/start-processing", "the service's id is longer"
        assert "--happened`" in write["what_to_do"]


async def test_running_write_is_not_listed(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=30) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        operated.add_fault("POST", "/v1/batches/*/start-processing", delay=15)
        path = f"/v1/batches/{batch}/start-processing"
        starting = asyncio.ensure_future(operated.gateway.request("POST", path))
        await wait_until_async(lambda: has_sent_write(operated))
        assert await list_in_doubt_writes(operated) == []
        starting.cancel()


def test_every_write_of_current_interface_has_advice() -> None:
    known = {f"POST {path}" for path in CREATED_OBJECTS} | CHANGE_DESCRIPTIONS.keys()
    assert known == {
        f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.method != "GET"
    }


# Outcomes entered by an operator.


async def test_confirmed_create_is_adopted_and_retry_gets_first_answer(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        body = await lose_batch_create(operated)
        write = (await load_only_in_doubt_write(operated))["write"]
        (created,) = operated.service.find_or_create_tenant().batches
        report = await operated.run_json_command(*SETTLE_COMMAND, write, "--made", created, "--yes")
        assert report == {"write": write, "told": created}
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        again = await operated.gateway.request("POST", "/v1/batches", body)
        assert again.status == 200, again.text
        assert (again.body["batch"]["amount"], again.body["batch"]["totalPayments"]) == ("10.00", 1)
        assert (
            operated.service.creation_counts["batch"]
            == operated.count_calls("POST", "/v1/batches")
            == 1
        )
        refused = await operated.run_command(
            *SETTLE_COMMAND, write, "--made", created, "--yes", code=2
        )
        assert "is already known: happened" in refused.stderr


async def test_operator_outcome_takes_effect_despite_long_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_minutes = SimpleNamespace(uniform=lambda _least, _most: 300)
    monkeypatch.setattr(reconciler, "random", for_minutes)
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        await lose_batch_create(operated)
        await wait_until_async(lambda: has_reason(operated, "the service lists no batches"))
        write = (await load_only_in_doubt_write(operated))["write"]
        (created,) = operated.service.find_or_create_tenant().batches
        await operated.run_command(*SETTLE_COMMAND, write, "--made", created, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated), 15)


async def test_absent_write_is_sent_again_on_retry(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        payment = {
            "recipient": {"id": await create_recipient(operated.gateway)},
            "sourceAmount": "10.00",
        }
        body = {"sourceCurrency": "USD", "payments": [payment]}
        operated.add_fault("POST", "/v1/batches", close="before")
        assert (await operated.gateway.request("POST", "/v1/batches", body)).status == 500
        write = (await load_only_in_doubt_write(operated))["write"]
        early = await operated.run_command(
            *SETTLE_COMMAND, write, "--did-not-happen", "--yes", code=2
        )
        assert "may still be carried out; check again in" in early.stderr
        await operated.age_sent_writes()
        await operated.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        traced = (await operated.run_command("trace", write)).stdout
        assert f"POST /batches  did not happen (recorded by {find_operator()})" in traced
        assert ", did not happen\n" in traced, "of the request"
        assert f"{find_operator()} recorded the outcome of {write}: did not happen: " in traced
        assert (await operated.gateway.request("POST", "/v1/batches", body)).status == 200
        assert operated.service.creation_counts["batch"] == 1


async def test_visible_outcome_overrides_operator_outcome(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=600) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        path = f"/v1/batches/{batch}/start-processing"
        operated.add_fault("POST", "/v1/batches/*/start-processing", **RESPONSE_LOST)
        operated.add_fault("GET", "/v1/batch/*/summary")  # the start's own read is answered
        operated.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        assert (await operated.gateway.request("POST", path)).status == 500
        await wait_until_async(lambda: has_reason(operated, "could not be read (status 503)"))
        write = (await load_only_in_doubt_write(operated))["write"]
        await operated.age_sent_writes()
        operated.service.faults.clear()
        await operated.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        again = await operated.gateway.request("POST", path)
        assert again.body["batch"]["status"] == "processing", again.text
        assert len(operated.service.batch_starts) == 1


async def test_confirmed_change_lets_its_flow_continue(tmp_path: Path) -> None:
    """The flow needs the recipient that the lost answer contained."""
    async with open_operated_gateway(tmp_path) as operated:
        operated.add_fault("PATCH", "/v1/recipients/*", **RESPONSE_LOST)
        operated.add_fault("GET", "/v1/recipients/*", status=503, times=1000)
        body = {**RECIPIENT_BODY, "language": "en", "payout": WALLET}
        assert (await operated.gateway.request("POST", "/v1/recipients", body)).status == 500
        await wait_until_async(lambda: has_reason(operated, "could not be read"))
        write = (await load_only_in_doubt_write(operated))["write"]
        await operated.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await asyncio.sleep(2)
        assert not await has_no_write_in_doubt(operated), "without the recipient it cannot continue"
        output = (await operated.run_command("writes", "unsettled")).stdout
        assert "recorded:    happened" in output
        assert "what to do:  no action needed; a running gateway continues" in output
        operated.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        again = await operated.gateway.request("POST", "/v1/recipients", body)
        assert again.status == 200, again.text
        assert again.body["recipient"]["payout"]["accounts"]["wallet"]["address"]
        assert (
            operated.service.creation_counts["recipient"]
            == operated.service.creation_counts["account"]
            == 1
        )


LOST_WRITES = {
    "a recipient": ("POST", "/v1/recipients", RECIPIENT_BODY, "recipients"),
    "an account": (
        "POST",
        "/v1/recipients/*/accounts",
        {**RECIPIENT_BODY, "payout": WALLET},
        "accounts",
    ),
}


@pytest.mark.parametrize("loss", LOST_WRITES.values(), ids=LOST_WRITES)
async def test_object_of_lost_recipient_write_can_be_named(
    loss: tuple[str, str, dict[str, Any], str], tmp_path: Path
) -> None:
    method, path, body, what = loss
    async with open_operated_gateway(tmp_path) as operated:
        operated.add_fault(method, path, **RESPONSE_LOST)
        operated.add_fault("GET", "/v1/recipients", status=503, times=1000)
        operated.add_fault("GET", "/v1/recipients/*", status=503, times=1000)
        assert (await operated.gateway.request("POST", "/v1/recipients", body)).status == 500
        await wait_until_async(lambda: has_reason(operated, "could not be read"))
        write = (await load_only_in_doubt_write(operated))["write"]
        (recipient,) = operated.service.find_or_create_tenant().recipients.values()
        made = recipient.id if what == "recipients" else recipient.accounts[0].id
        await operated.run_command(*SETTLE_COMMAND, write, "--made", made, "--yes")
        operated.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        again = await operated.gateway.request("POST", "/v1/recipients", body)
        assert again.body["recipient"]["id"], again.text
        assert operated.service.creation_counts["recipient"] == 1
        assert operated.service.creation_counts["account"] == (what == "accounts")


async def test_payment_named_by_operator_is_shown(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        batch = await create_batch(operated.gateway, recipient, "10.00")
        operated.add_fault("POST", "/v1/batches/*/payments", **RESPONSE_LOST)
        operated.add_fault("GET", "/v1/batch/*/summary")
        operated.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (
            await operated.gateway.request("POST", f"/v1/batches/{batch}/payments", body)
        ).status == 500
        await wait_until_async(lambda: has_reason(operated, "could not be read"))
        write = (await load_only_in_doubt_write(operated))["write"]
        (held,) = operated.service.find_or_create_tenant().batches.values()
        first, new = held.payments
        operated.service.faults.clear()
        await operated.run_command(*SETTLE_COMMAND, write, "--made", new, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        again = await operated.gateway.request("POST", f"/v1/batches/{batch}/payments", body)
        assert (again.status, again.body["payment"]["sourceAmount"]) == (200, "7.00")
        assert first != new
        assert operated.service.creation_counts["payment"] == 2


# Rejected outcomes.


async def test_wrong_object_id_is_refused(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        recipient = await create_recipient(operated.gateway)
        other = await create_batch(operated.gateway, recipient, "99.00")
        (known_already,) = operated.service.find_or_create_tenant().batches
        body = await lose_batch_create(operated, recipient)
        write = (await load_only_in_doubt_write(operated))["write"]
        known = await operated.run_command(*SETTLE_COMMAND, write, "--made", other, "--yes", code=2)
        assert "was created by another write" in known.stderr
        nobody = "B-0000000000000000000000"
        await operated.run_command(*SETTLE_COMMAND, write, "--made", nobody, "--yes")
        await wait_until_async(
            lambda: has_reason(operated, f"no batch {nobody}, named by the operator")
        )
        to_do = (await load_only_in_doubt_write(operated))["what_to_do"]
        assert to_do.startswith(
            "the recorded outcome cannot be right: look in the service's dashboard"
        )
        assert f"writes settle {write} --made B-…" in to_do
        batches = operated.service.find_or_create_tenant().batches
        odd = next(one for id_, one in batches.items() if id_ != known_already)
        payments = dict(odd.payments)
        odd.payments.clear()
        await operated.run_command(*SETTLE_COMMAND, write, "--made", odd.id, "--yes")
        await wait_until_async(lambda: has_reason(operated, "pays something else"))
        odd.payments.update(payments)
        await operated.run_command(*SETTLE_COMMAND, write, "--made", odd.id, "--yes")
        assert (await operated.gateway.request("POST", "/v1/batches", body)).status == 200


async def test_impossible_outcome_is_refused_in_one_line(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        await lose_batch_create(operated)
        write = (await load_only_in_doubt_write(operated))["write"]
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
            result = await operated.run_command(*SETTLE_COMMAND, *words, "--yes", code=2)
            assert said in result.stderr
            assert result.stdout == ""
        unasked = await operated.run_command(*SETTLE_COMMAND, write, "--made", "B-1", code=2)
        assert "not confirmed: no answer was given" in unasked.stderr
        assert (await load_only_in_doubt_write(operated))["told"] is None


async def test_operator_outcomes_are_audited(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        await lose_batch_create(operated)
        write = (await load_only_in_doubt_write(operated))["write"]
        (created,) = operated.service.find_or_create_tenant().batches
        await operated.run_command(*SETTLE_COMMAND, write, "--made", created, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated))
        acts = (await operated.run_json_command("trace", created))["acts"]
        said = f"happened (recorded by {find_operator()}), made {created}"
        assert said in (await operated.run_command("trace", created)).stdout
        assert [(act["what"], act["by"]) for act in acts] == [
            (f"recorded the outcome of {write}: {created}", find_operator())
        ]
        assert acts[0]["undertaking"].startswith(write.partition(".")[0])


# Writes of a killed process.


async def test_next_process_lists_and_settles_write_of_killed_process(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(processing_seconds=60))
    simulator = await start_simulator(service=service)
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])

    async def listed() -> list[dict[str, Any]]:
        ended = await asyncio.to_thread(
            run_installed_command, "writes", "unsettled", "--json", folder=tmp_path
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        found: list[dict[str, Any]] = json.loads(ended.stdout)["writes"]
        return found

    async def all_are_settled() -> bool:
        return not await listed()

    try:
        headers = {"X-API-Key": KEY["api_key"]}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with run_serve(tmp_path) as serves:
                body = {**RECIPIENT_BODY, "payout": WALLET}
                service.faults.append(Fault("POST", "/v1/recipients", answer_delay=30))
                asking = asyncio.ensure_future(
                    session.post(f"{serves.url}/v1/recipients", json=body)
                )
                await wait_until(lambda: service.creation_counts["recipient"] == 1)
                serves.process.kill()
                await asyncio.gather(asking, return_exceptions=True)
            (write,) = await listed()
            assert (write["state"], write["path"]) == ("sent", "/recipients")
            assert write["why"] == "the process that sent it ended before the answer came"
            async with run_serve(tmp_path) as serves:
                await wait_until_async(all_are_settled, 20)
                assert (
                    service.creation_counts["recipient"] == service.creation_counts["account"] == 1
                )
                assert await serves.stop() == 0
    finally:
        await simulator.stop()


# Operations that cannot be continued.


async def change_recorded_steps(operated: OperatedGateway) -> None:
    """Change the recorded steps, as if another version with another flow had written them."""
    async with operated.open_store() as store:
        rows = OperationRepository(store, ObjectStateStore(store))
        (operation,) = await rows.list_unfinished()
        for number, text in enumerate(await rows.load_step_results(operation)):
            odd = [
                ["0" * 16, outcome]
                for _mark, outcome in json.loads(stored_json.decompress_text(text))
            ]
            sealed = store.encryption.encrypt(json.dumps(odd), build_context(operation, "results"))
            those = select(operation_steps.c.number).where(
                operation_steps.c.operation_id == operation.id
            )
            numbers = sorted(row.number for row in await fetch(store, those))
            that = (
                operation_steps.c.operation_id == operation.id,
                operation_steps.c.number == numbers[number],
            )
            await execute(store, update(operation_steps).where(*that).values(results=sealed))


async def test_operation_of_another_version_can_be_closed_once_its_writes_are_settled(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        operated.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await operated.gateway.request("POST", path)).status == 500
        await change_recorded_steps(operated)
        await operated.age_sent_writes()
        await wait_until_async(lambda: has_reason(operated, "the program has changed since"))
        write = (await load_only_in_doubt_write(operated))["write"]
        refused = await operated.run_command("writes", "close", write, "--yes", code=2)
        assert "it is not known whether" in refused.stderr
        await operated.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await asyncio.sleep(2)
        assert not await has_no_write_in_doubt(operated), "it cannot be continued"
        assert (await operated.gateway.request("DELETE", f"/v1/batches/{batch}")).status == 500
        await operated.run_command("writes", "close", write, "--yes")
        assert await has_no_write_in_doubt(operated)
        assert (await operated.run_json_command("reconcile"))["findings"] == []
        assert (await operated.gateway.request("POST", path)).status == 200
        assert len(operated.service.batch_starts) == 1
        again = await operated.run_command("writes", "close", write, "--yes", code=2)
        assert "it does not need to be closed" in again.stderr


async def test_closed_start_that_happened_is_recorded(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=60) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        operated.add_fault("POST", "/v1/batches/*/start-processing", **RESPONSE_LOST)
        operated.add_fault("GET", "/v1/batch/*/summary")
        operated.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        path = f"/v1/batches/{batch}/start-processing"
        assert (await operated.gateway.request("POST", path)).status == 500
        await change_recorded_steps(operated)
        await wait_until_async(lambda: has_reason(operated, "the program has changed since"))
        operated.service.faults.clear()
        write = (await load_only_in_doubt_write(operated))["write"]
        await operated.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await wait_until_async(lambda: close_operation(operated, write))
        assert (await operated.run_json_command("reconcile"))["findings"] == []
        facts = (await operated.run_json_command("trace", batch))["facts"]
        assert [known["phase"] for name, known in facts.items() if "started" in known] == ["sent"]


async def close_operation(operated: OperatedGateway, write: str) -> bool:
    """Close the operation; False if the gateway is probing it at this moment."""
    ended = await asyncio.to_thread(
        run_installed_command, "writes", "close", write, "--yes", folder=operated.folder
    )
    return ended.returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
async def test_settle_asks_for_confirmation(answer: str, code: int, tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        await lose_batch_create(operated)
        write = (await load_only_in_doubt_write(operated))["write"]
        (created,) = operated.service.find_or_create_tenant().batches
        words = [
            *SETTLE_COMMAND,
            write,
            "--made",
            created,
            "--config",
            str(tmp_path / "gateway.toml"),
        ]
        asked = await asyncio.to_thread(CliRunner().invoke, gateway, words, input=answer)
        assert asked.exit_code == code
        assert "POST /batches of demo sandbox" in asked.stderr
        assert f"made {created}?" in asked.stderr
        await asyncio.sleep(2)
        assert await has_no_write_in_doubt(operated) is (code == 0)
