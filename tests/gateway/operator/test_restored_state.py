"""A restored state: it starts no batch until it has been reconciled with the service."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy import delete

from gateway.config.settings import Settings
from gateway.operator.doctor import check_interruptions, run_doctor
from gateway.server.app import run_gateway
from gateway.storage import open_store
from gateway.storage.restore_detection import (
    HighWaterMark,
    load_restore_state,
    read_high_water_mark_file,
)
from gateway.storage.tables import operations
from tests.operator_commands import (
    RESPONSE_LOST,
    log_to_file,
    read_log,
    run_command,
    wait_until_async,
    write_configuration,
)
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import (
    KEY,
    GatewayResponse,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
)
from tests.signed_requests import SigningClient, extract_error, send_raw
from tests.simulator import Fault, Service, ServiceOptions, Simulator, start_simulator
from tests.sockets import wait_until
from tests.state import execute


class RestorableGateway:
    """A simulated service, and a gateway state that can be saved and restored."""

    def __init__(self, folder: Path, service: Service, simulator: Simulator) -> None:
        self.folder = folder
        self.service = service
        self.settings = build_settings(folder, simulator.url)

    @property
    def mark_file(self) -> Path:
        return self.settings.state.restore_mark_path

    @asynccontextmanager
    async def open_gateway(
        self, settings: Settings | None = None
    ) -> AsyncIterator[GatewayUnderTest]:
        settings = settings or self.settings
        async with run_gateway(settings) as running_gateway, aiohttp.ClientSession() as session:
            yield GatewayUnderTest(running_gateway, settings, session)

    def save_database(self) -> None:
        shutil.copy(self.folder / "gateway.db", self.folder / "saved.db")

    def restore_database(self) -> None:
        shutil.copy(self.folder / "saved.db", self.folder / "gateway.db")

    async def run_reconcile(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(
            (await run_command(self.folder, "reconcile", *arguments, "--json", code=code)).stdout
        )


@asynccontextmanager
async def open_restorable_gateway(
    folder: Path, **switches: Any
) -> AsyncIterator[RestorableGateway]:
    service = Service(seed=1, options=ServiceOptions(**switches))
    simulator = await start_simulator(service=service)
    write_configuration(folder, simulator.url)
    restorable_gateway = RestorableGateway(folder, service, simulator)
    await import_api_keys(restorable_gateway.settings, [KEY])
    try:
        with log_to_file(folder):
            yield restorable_gateway
    finally:
        await simulator.stop()


async def start_batch(gateway: GatewayUnderTest, batch: str) -> GatewayResponse:
    return await gateway.request("POST", f"/v1/batches/{batch}/start-processing")


async def edit_batch(gateway: GatewayUnderTest, batch: str) -> None:
    (payment,) = await load_payment_ids(gateway, batch)
    change = {"sourceAmount": "6.00"}
    await request_successfully(gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change)


def is_refused_as_restored(response: GatewayResponse) -> bool:
    (error,) = response.body["errors"]
    return (
        (response.status, error["code"]) == (500, "internal_server_error")
        and "records are being checked" in error["message"]
        and response.headers["Retry-After"] == "60"
    )


async def restore_outdated_database(restorable_gateway: RestorableGateway) -> str:
    """Save a state with one batch, use it, restore the old copy; return the batch's id."""
    async with restorable_gateway.open_gateway() as gateway:
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
    restorable_gateway.save_database()
    async with restorable_gateway.open_gateway() as gateway:
        await create_recipient(gateway, "later")
    restorable_gateway.restore_database()
    return batch


async def test_restore_mark_advances_with_writes_and_at_shutdown(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            await create_recipient(gateway)
            await wait_until(
                lambda: read_high_water_mark_file(restorable_gateway.mark_file).number == 1
            )
            await create_recipient(gateway, "bob")
        assert read_high_water_mark_file(restorable_gateway.mark_file) == HighWaterMark(0, 2)
        assert restorable_gateway.mark_file == tmp_path / "gateway.key.mark"


async def test_restored_state_starts_no_batch_until_reconciled(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(tmp_path, processing_seconds=60) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        async with restorable_gateway.open_gateway() as gateway:
            for phrase in ("database_restored", "could be paid twice", "payout-gateway reconcile"):
                assert phrase in read_log(tmp_path)
            assert is_refused_as_restored(await start_batch(gateway, batch))
            payment = {"recipient": {"id": "R-1"}, "sourceAmount": "1.00"}
            path = f"/v1/batches/{batch}/payments"
            assert is_refused_as_restored(await gateway.request("POST", path, payment))
            path = f"/v1/batches/{batch}"
            edit = {"payments": [payment]}
            assert is_refused_as_restored(await gateway.request("PATCH", path, edit))
            await request_successfully(
                gateway, "PATCH", f"/batches/{batch}", {"description": "another"}
            )
            assert restorable_gateway.service.batch_starts == []
            await create_recipient(gateway, "other")  # everything else continues
            doctor = json.loads((await run_command(tmp_path, "doctor", "--json", code=1)).stdout)
            assert [
                finding["state"]
                for finding in doctor["findings"]
                if finding["looked_at"] == "state"
            ] == ["error"]
            verdict = (await run_command(tmp_path, "doctor", code=1)).stdout.splitlines()[0]
            assert verdict.startswith("NOT READY: 1 error")
            assert verdict.endswith(". No batch would be started.")
            report = await restorable_gateway.run_reconcile()
            assert (report["restored"], report["cleared"]) == (True, True)
            start_response = await start_batch(gateway, batch)
            assert (start_response.status, start_response.body["batch"]["status"]) == (
                200,
                "processing",
            )
        assert read_high_water_mark_file(restorable_gateway.mark_file).generation == 1
        async with restorable_gateway.open_gateway() as gateway:
            batch = await create_batch(gateway, await create_recipient(gateway, "third"), "5.00")
            assert (await start_batch(gateway, batch)).status == 200


async def test_restored_state_refuses_signed_start_of_superseded_batch(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(
        tmp_path, inferred=False, processing_seconds=60
    ) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = restorable_gateway.service.find_or_create_tenant().batches
        restorable_gateway.save_database()
        async with (
            restorable_gateway.open_gateway() as gateway
        ):  # the batch that replaces this one, and pays it
            await edit_batch(gateway, batch)
            assert (await start_batch(gateway, batch)).status == 200
        restorable_gateway.restore_database()
        async with restorable_gateway.open_gateway() as gateway:
            path = f"/v1/batches/{upstream}/start-processing"
            response = await send_raw(
                gateway, SigningClient().build_request("POST", path, stamp=int(time.time()))
            )
            assert extract_error(response) == (500, "internal_server_error")
            assert "records are being checked" in response.parse_json["errors"][0]["message"]
            assert response.headers["retry-after"] == "60"
        assert len(restorable_gateway.service.batch_starts) == 1


async def test_restored_state_does_not_continue_start_begun_before_backup(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(
        tmp_path, inferred=False, processing_seconds=60
    ) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
            await edit_batch(gateway, batch)
            restorable_gateway.service.faults.append(Fault("POST", "/v1/batches", **RESPONSE_LOST))
            assert (await start_batch(gateway, batch)).status == 500
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            await create_recipient(gateway, "later")
        restorable_gateway.restore_database()
        async with restorable_gateway.open_gateway() as gateway:
            result = await run_command(tmp_path, "writes", "unsettled", "--json")
            (in_doubt_write,) = json.loads(result.stdout)["writes"]
            upstream_id = list(restorable_gateway.service.find_or_create_tenant().batches)[1]
            await run_command(
                tmp_path,
                "writes",
                "settle",
                in_doubt_write["write"],
                "--made",
                upstream_id,
                "--yes",
            )
            assert is_refused_as_restored(await start_batch(gateway, batch))
            assert restorable_gateway.service.batch_starts == []
            await restorable_gateway.run_reconcile(code=1)
            await run_command(tmp_path, "unfreeze", "--all")
            assert (await start_batch(gateway, batch)).status == 200
        assert len(restorable_gateway.service.batch_starts) == 1


async def test_restored_state_stays_restored_after_more_writes(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        async with restorable_gateway.open_gateway() as gateway:
            for name in ("a", "b", "c"):
                await create_recipient(gateway, name)
        async with restorable_gateway.open_gateway() as gateway:
            assert is_refused_as_restored(await start_batch(gateway, batch))


async def test_mark_of_another_machine_does_not_undo_reconciliation(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        other_mark_file = tmp_path / "another.mark"
        shutil.copy(restorable_gateway.mark_file, other_mark_file)
        await restorable_gateway.run_reconcile()
        state = restorable_gateway.settings.state.model_copy(update={"mark_file": other_mark_file})
        settings = restorable_gateway.settings.model_copy(update={"state": state})
        async with restorable_gateway.open_gateway(settings) as gateway:
            assert (await start_batch(gateway, batch)).status == 200


async def test_partial_reconciliation_does_not_clear_restored_state(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        report = await restorable_gateway.run_reconcile("--merchant", "demo")
        assert (report["restored"], report["cleared"]) == (True, False)
        restorable_gateway.service.faults.append(Fault("GET", "/v1/batch/*/summary", status=503))
        report = await restorable_gateway.run_reconcile(code=2)
        assert (report["complete"], report["cleared"]) == (False, False)
        async with restorable_gateway.open_gateway() as gateway:
            assert is_refused_as_restored(await start_batch(gateway, batch))


async def test_merchant_without_active_key_does_not_block_others(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(tmp_path, processing_seconds=60) as restorable_gateway:
        invalid_credentials = {"access_key": "GONE", "secret_key": "not theirs any more"}
        key_without_service = {
            **KEY,
            **invalid_credentials,
            "merchant": "left",
            "api_key": "their-api-key",
            "name": "left",
        }
        await import_api_keys(restorable_gateway.settings, [key_without_service])
        batch = await restore_outdated_database(restorable_gateway)
        report = await restorable_gateway.run_reconcile(code=2)
        assert (report["cleared"], report["left_out"]) == (False, [])
        assert "revoke the merchant's keys" in report["unreadable"][0]["what_to_do"]
        await run_command(tmp_path, "keys", "revoke", "left")
        report = await restorable_gateway.run_reconcile()
        assert (report["cleared"], report["left_out"]) == (
            True,
            [{"merchant": "left", "environment": "sandbox"}],
        )
        # Nobody has compared its batches, and a key may be imported for it again.
        freezes = json.loads((await run_command(tmp_path, "freeze", "--list", "--json")).stdout)
        assert [freeze["merchant"] for freeze in freezes["frozen"]] == ["left"]
        async with restorable_gateway.open_gateway() as gateway:
            assert (await start_batch(gateway, batch)).status == 200


async def test_batch_of_rehearsal_does_not_freeze_writes_after_restore(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            await create_recipient(gateway)
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            batch = {"sourceCurrency": "USD", "description": "payout-gateway-rehearsal-1"}
            await request_successfully(gateway, "POST", "/batches", batch)
        restorable_gateway.restore_database()
        report = await restorable_gateway.run_reconcile()
        assert (report["cleared"], report["frozen"]) == (True, False)
        assert [finding["kind"] for finding in report["unknown"]] == ["rehearsal"]


async def test_batches_lost_by_restore_are_findings(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            recipient = await create_recipient(gateway)
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            batch = await create_batch(gateway, recipient, "5.00")
            assert (await start_batch(gateway, batch)).status == 200
        restorable_gateway.restore_database()
        report = await restorable_gateway.run_reconcile(code=1)
        (lost_batch,) = restorable_gateway.service.find_or_create_tenant().batches
        unknown_batches = [
            (finding["kind"], finding["id"], finding["upstream"], finding["recorded"])
            for finding in report["findings"]
        ]
        assert unknown_batches == [("unknown", batch, lost_batch, True)]
        assert report["cleared"] is True
        report = await restorable_gateway.run_reconcile()
        assert (report["findings"], report["unknown"]) == ([], [])
        async with (
            restorable_gateway.open_gateway() as gateway
        ):  # a client that finds no recipient would create it again
            assert (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"][
                "amount"
            ] == "5.00"
            for path in ("/payments", f"/payments?recipient={recipient}"):
                (payment,) = (await request_successfully(gateway, "GET", path))["payments"]
                assert payment["batch"]["id"] == batch
            await run_command(tmp_path, "unfreeze", "--all")
            assert (await start_batch(gateway, batch)).status == 406


async def test_batch_of_create_in_doubt_is_not_recorded_as_made_elsewhere(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        faults = restorable_gateway.service.faults
        async with restorable_gateway.open_gateway() as gateway:
            recipient = await create_recipient(gateway)
            faults.append(Fault("POST", "/v1/batches", **RESPONSE_LOST))
            unreadable = Fault("GET", "/v1/batches", status=503, times=1000)
            faults.append(unreadable)
            payment = {"recipient": {"id": recipient}, "sourceAmount": "5.00"}
            body = {"sourceCurrency": "USD", "payments": [payment]}
            assert (await gateway.request("POST", "/v1/batches", body)).status == 500
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            await create_recipient(gateway, "later")
        restorable_gateway.restore_database()
        faults.remove(unreadable)
        report = await restorable_gateway.run_reconcile(code=1)
        assert [finding["recorded"] for finding in report["unknown"]] == [False]


async def test_findings_of_restored_state_are_reviewed_before_any_start(tmp_path: Path) -> None:
    async with open_restorable_gateway(
        tmp_path, inferred=False, processing_seconds=60
    ) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
            await edit_batch(gateway, batch)
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            assert (await start_batch(gateway, batch)).status == 200
        restorable_gateway.restore_database()
        async with restorable_gateway.open_gateway() as gateway:
            assert is_refused_as_restored(await start_batch(gateway, batch))
            report = await restorable_gateway.run_reconcile(code=1)
            assert (report["cleared"], report["frozen"]) == (True, True)
            # Like a client that retries: the gateway knows no more about its payments than before.
            assert "stopped" in (await start_batch(gateway, batch)).body["errors"][0]["message"]
            assert len(restorable_gateway.service.batch_starts) == 1


async def test_recipients_created_since_backup_resolve_by_client_ids(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(
        tmp_path, recipient_id_length=20, max_page_size=5
    ) as restorable_gateway:
        async with restorable_gateway.open_gateway() as gateway:
            for number in range(15):
                await create_recipient(gateway, f"early-{number}")
        restorable_gateway.save_database()
        async with restorable_gateway.open_gateway() as gateway:
            recipient = await create_recipient(gateway, "late")
            assert recipient not in restorable_gateway.service.find_or_create_tenant().recipients
        restorable_gateway.restore_database()
        report = await restorable_gateway.run_reconcile()
        assert (report["cleared"], report["findings"]) == (True, [])
        # Clients know every recipient of the second page, and all later ones are older.
        assert len(restorable_gateway.service.list_requests("GET", "/v1/recipients")) == 2
        async with restorable_gateway.open_gateway() as gateway:
            path = f"/recipients/{recipient}"
            assert (await request_successfully(gateway, "GET", path))["recipient"][
                "id"
            ] == recipient


async def test_reconcile_ends_with_whether_starts_are_allowed_and_next_step(
    tmp_path: Path,
) -> None:
    async with open_restorable_gateway(tmp_path, inferred=False) as restorable_gateway:
        await restore_outdated_database(restorable_gateway)
        part = await run_command(tmp_path, "reconcile", "--merchant", "demo", code=1)
        assert read_last_line(part.stdout) == (
            "The state was restored: no batch is started yet; run `payout-gateway reconcile` without --merchant "
            "and --environment."
        )
        restorable_gateway.service.faults.append(Fault("GET", "/v1/batch/*/summary", status=503))
        failed_run = await run_command(tmp_path, "reconcile", code=2)
        assert "no batch is started yet, because something could not be read" in failed_run.stdout
        run_with_findings = await run_command(tmp_path, "reconcile", code=1)
        assert "there are findings, so all writes are now frozen" in read_last_line(
            run_with_findings.stdout
        )
        assert "run `payout-gateway unfreeze --all`" in read_last_line(run_with_findings.stdout)
        freezes = await run_command(tmp_path, "freeze", "--list")
        reason = r"\(set by reconcile: [1-9]\d* findings?\)"
        assert re.search(f"every merchant, live and sandbox {reason} ", freezes.stdout)
        assert re.search(f"froze {reason} ", freezes.stdout), "the audit log"
        async with open_store(restorable_gateway.settings.state) as store:
            (finding,) = await check_interruptions(restorable_gateway.settings, store)
        assert re.search(f"every merchant, live and sandbox {reason}$", finding.result)
        next_run = await run_command(tmp_path, "reconcile")
        assert "restored" not in next_run.stdout
        assert "writes are frozen" in next_run.stderr


def read_last_line(output: str) -> str:
    return output.splitlines()[-1]


async def test_service_that_lists_no_batches_is_a_finding(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path, inferred=False) as restorable_gateway:
        await restore_outdated_database(restorable_gateway)
        report = await restorable_gateway.run_reconcile(code=1)
        assert [finding["kind"] for finding in report["findings"]] == ["unlisted"]
        assert "compare it in the dashboard" in report["findings"][0]["what_to_do"]
        assert report["cleared"] is True
        assert (await restorable_gateway.run_reconcile())["findings"] == []


async def test_missing_mark_is_created_without_alarm(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        restorable_gateway.mark_file.unlink()
        (finding,) = (
            each
            for each in await run_doctor(restorable_gateway.settings)
            if each.check_name == "state"
        )
        assert "gateway.key.mark here, so an older copy could not be recognised" in finding.result
        async with restorable_gateway.open_gateway() as gateway:
            assert (await start_batch(gateway, batch)).status == 200
        assert read_high_water_mark_file(restorable_gateway.mark_file).number > 0


async def test_unwritable_mark_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        state_with_missing_folder = restorable_gateway.settings.state.model_copy(
            update={"mark_file": tmp_path / "no" / "mark"}
        )
        settings = restorable_gateway.settings.model_copy(
            update={"state": state_with_missing_folder}
        )
        async with restorable_gateway.open_gateway(settings) as gateway:
            await create_recipient(gateway)
            await asyncio.sleep(1.5)
            await create_recipient(gateway, "bob")
            await asyncio.sleep(1.5)
        (finding,) = (each for each in await run_doctor(settings) if each.check_name == "state")
        assert (finding.state, "set state.mark_file" in finding.advice) == ("warning", True)
        assert read_log(tmp_path).count("restore_mark_not_written") == 1


async def test_invalid_mark_is_reported_at_start(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    await import_api_keys(build_settings(tmp_path, "http://127.0.0.1:9"), [KEY])
    (tmp_path / "gateway.key.mark").write_text("{}")
    result = run_installed_command("serve", folder=tmp_path)
    assert result.returncode == 2
    assert "gateway.key.mark cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_restore_under_running_gateway_is_detected(tmp_path: Path) -> None:
    async with (
        open_restorable_gateway(tmp_path) as restorable_gateway,
        restorable_gateway.open_gateway() as gateway,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        await wait_until(
            lambda: read_high_water_mark_file(restorable_gateway.mark_file).number == 2
        )
        # As a database server restores: without notice to the gateway.
        async with open_store(restorable_gateway.settings.state) as store:
            await execute(store, delete(operations).where(operations.c.number == 2))

        async def is_noticed() -> bool:
            async with open_store(restorable_gateway.settings.state) as store:
                return (await load_restore_state(store)).is_restored

        await wait_until_async(is_noticed)
        assert is_refused_as_restored(await start_batch(gateway, batch))


async def test_installed_commands_report_restored_state(tmp_path: Path) -> None:
    async with open_restorable_gateway(tmp_path) as restorable_gateway:
        batch = await restore_outdated_database(restorable_gateway)
        base_url = restorable_gateway.settings.environments.map_configured_environments_by_name()[
            "sandbox"
        ].base_url
        (tmp_path / "gateway.toml").write_text(build_configuration(base_url))
        headers = {"X-API-Key": KEY["api_key"]}
        async with (
            run_serve(tmp_path) as gateway,
            aiohttp.ClientSession(headers=headers) as session,
        ):

            async def request_start() -> int:
                url = f"{gateway.url}/v1/batches/{batch}/start-processing"
                async with session.post(url) as answer:
                    return answer.status

            assert await request_start() == 500
            (line,) = [
                log_line
                for log_line in gateway.parse_log()
                if log_line["event"] == "database_restored"
            ]
            assert {"reason", "hint"} <= line.keys()
            assert line["level"] == "error"
            result = await asyncio.to_thread(run_installed_command, "reconcile", folder=tmp_path)
            assert (result.returncode, result.stderr) == (0, "")
            assert "The state was restored: batches are started again." in result.stdout
            assert await request_start() == 200
            assert await gateway.stop() == 0
