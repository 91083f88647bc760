"""A state that was put back: nothing is started on it until it was compared with the service."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy import delete

from gateway.config.settings import Settings
from gateway.server.app import run_gateway
from gateway.simulator import Fault, Service, Simulator, Switches, start
from gateway.storage import open_store
from gateway.storage.restore_marks import Mark, read_mark, standing
from gateway.storage.tables import journal
from tests.house import KEY, Got, House, import_lines, settings_for
from tests.operating import LOST, configure, eventually, logged, logged_apart, says
from tests.payday import done, make_batch, make_recipient, payment_ids
from tests.processes import command, configuration, serving
from tests.signed import Client, asked, refused
from tests.sockets import until
from tests.states import execute


class Town:
    """A service, and a gateway's state that a gateway may be opened on."""

    def __init__(self, folder: Path, service: Service, simulator: Simulator) -> None:
        self.folder = folder
        self.service = service
        self.settings = settings_for(folder, simulator.url)

    @property
    def mark(self) -> Path:
        return self.settings.state.mark

    @asynccontextmanager
    async def gateway(self, settings: Settings | None = None) -> AsyncIterator[House]:
        settings = settings or self.settings
        async with run_gateway(settings) as running, aiohttp.ClientSession() as session:
            yield House(running, settings, session)

    def save(self) -> None:
        shutil.copy(self.folder / "gateway.db", self.folder / "saved.db")

    def put_back(self) -> None:
        shutil.copy(self.folder / "saved.db", self.folder / "gateway.db")

    async def reconciled(self, *words: str, code: int = 0) -> Any:
        return json.loads(
            (await says(self.folder, "reconcile", *words, "--json", code=code)).stdout
        )


@asynccontextmanager
async def town(folder: Path, **switches: Any) -> AsyncIterator[Town]:
    service = Service(seed=1, switches=Switches(**switches))
    simulator = await start(service=service)
    configure(folder, simulator.url)
    here = Town(folder, service, simulator)
    await import_lines(here.settings, [KEY])
    try:
        with logged_apart(folder):
            yield here
    finally:
        await simulator.stop()


async def begin(house: House, batch: str) -> Got:
    return await house.ask("POST", f"/v1/batches/{batch}/start-processing")


async def edit(house: House, batch: str) -> None:
    (payment,) = await payment_ids(house, batch)
    change = {"sourceAmount": "6.00"}
    await done(house, "PATCH", f"/batches/{batch}/payments/{payment}", change)


def is_checking(got: Got) -> bool:
    (error,) = got.body["errors"]
    return (got.status, error["code"]) == (500, "internal_server_error") and (
        "records are being checked" in error["message"]
    )


async def put_back_after_more(here: Town) -> str:
    """A state that was saved with one batch, used on, and put back; the batch."""
    async with here.gateway() as house:
        batch = await make_batch(house, await make_recipient(house), "5.00")
    here.save()
    async with here.gateway() as house:
        await make_recipient(house, "later")
    here.put_back()
    return batch


async def test_the_mark_is_kept_as_the_state_goes_on_and_at_the_end(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        async with here.gateway() as house:
            await make_recipient(house)
            await until(lambda: read_mark(here.mark).number == 1)
            await make_recipient(house, "bob")
        assert read_mark(here.mark) == Mark(0, 2)
        assert here.mark == tmp_path / "gateway.key.mark"


async def test_on_a_restored_state_nothing_is_started_until_it_is_reconciled(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, processing_seconds=60) as here:
        batch = await put_back_after_more(here)
        async with here.gateway() as house:
            for words in ("database_restored", "could be paid twice", "payout-gateway reconcile"):
                assert words in logged(tmp_path)
            assert is_checking(await begin(house, batch))
            assert here.service.starts == []
            await make_recipient(house, "other")  # everything else goes on
            doctor = json.loads((await says(tmp_path, "doctor", "--json", code=1)).stdout)
            assert [one["state"] for one in doctor["findings"] if one["looked_at"] == "state"] == [
                "error"
            ]
            told = await here.reconciled()
            assert (told["restored"], told["cleared"]) == (True, True)
            started = await begin(house, batch)
            assert (started.status, started.body["batch"]["status"]) == (200, "processing")
        assert read_mark(here.mark).generation == 1
        async with here.gateway() as house:
            batch = await make_batch(house, await make_recipient(house, "third"), "5.00")
            assert (await begin(house, batch)).status == 200


async def test_nor_by_the_signed_face_whose_client_may_know_of_an_abandoned_batch(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, inferred=False, processing_seconds=60) as here:
        async with here.gateway() as house:
            batch = await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = here.service.world().batches
        here.save()
        async with here.gateway() as house:  # what another batch takes the place of, and is paid by
            await edit(house, batch)
            assert (await begin(house, batch)).status == 200
        here.put_back()
        async with here.gateway() as house:
            path = f"/v1/batches/{upstream}/start-processing"
            heard = await asked(house, Client().request("POST", path, stamp=int(time.time())))
            assert refused(heard) == (500, "internal_server_error")
            assert "records are being checked" in heard.json["errors"][0]["message"]
        assert len(here.service.starts) == 1


async def test_nor_is_a_start_gone_on_with_that_was_begun_before_the_backup(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, inferred=False, processing_seconds=60) as here:
        async with here.gateway() as house:
            batch = await make_batch(house, await make_recipient(house), "5.00")
            await edit(house, batch)
            here.service.faults.append(Fault("POST", "/v1/batches", **LOST))
            assert (await begin(house, batch)).status == 500
        here.save()
        async with here.gateway() as house:
            await make_recipient(house, "later")
        here.put_back()
        async with here.gateway() as house:
            listed = await says(tmp_path, "writes", "unsettled", "--json")
            (left,) = json.loads(listed.stdout)["writes"]
            made = list(here.service.world().batches)[1]
            await says(tmp_path, "writes", "settle", left["write"], "--made", made, "--yes")
            assert is_checking(await begin(house, batch))
            assert here.service.starts == []
            await here.reconciled(code=1)
            await says(tmp_path, "unfreeze", "--all")
            assert (await begin(house, batch)).status == 200
        assert len(here.service.starts) == 1


async def test_a_restored_state_stays_one_however_far_it_comes(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        batch = await put_back_after_more(here)
        async with here.gateway() as house:
            for name in ("a", "b", "c"):
                await make_recipient(house, name)
        async with here.gateway() as house:
            assert is_checking(await begin(house, batch))


async def test_another_machine_s_mark_does_not_undo_a_reconciliation(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        batch = await put_back_after_more(here)
        other = tmp_path / "another.mark"
        shutil.copy(here.mark, other)
        await here.reconciled()
        state = here.settings.state.model_copy(update={"mark_file": other})
        settings = here.settings.model_copy(update={"state": state})
        async with here.gateway(settings) as house:
            assert (await begin(house, batch)).status == 200


async def test_a_part_of_it_does_not_do(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        batch = await put_back_after_more(here)
        told = await here.reconciled("--merchant", "demo")
        assert (told["restored"], told["cleared"]) == (True, False)
        here.service.faults.append(Fault("GET", "/v1/batch/*/summary", status=503))
        told = await here.reconciled(code=2)
        assert (told["complete"], told["cleared"]) == (False, False)
        async with here.gateway() as house:
            assert is_checking(await begin(house, batch))


async def test_a_merchant_of_whom_no_key_is_in_use_keeps_nobody_else_from_starting(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, processing_seconds=60) as here:
        pair = {"access_key": "GONE", "secret_key": "not theirs any more"}
        left = {**KEY, **pair, "merchant": "left", "api_key": "their-api-key", "name": "left"}
        await import_lines(here.settings, [left])
        batch = await put_back_after_more(here)
        refused = await says(tmp_path, "reconcile", "--leave-out", "left", code=2)
        assert "a key of left sandbox is active" in refused.stderr
        await says(tmp_path, "keys", "revoke", "left")
        told = await here.reconciled(code=2)
        assert told["cleared"] is False
        assert told["unreadable"][0]["what_to_do"].endswith("--leave-out left can skip it")
        refused = await says(tmp_path, "reconcile", "--leave-out", "nobody", code=2)
        assert "there is no merchant nobody" in refused.stderr
        told = await here.reconciled("--leave-out", "left")
        assert (told["cleared"], told["left_out"]) == (
            True,
            [{"merchant": "left", "environment": "sandbox"}],
        )
        async with here.gateway() as house:
            assert (await begin(house, batch)).status == 200


async def test_batches_that_a_restored_state_may_have_lost_are_findings(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        async with here.gateway() as house:
            recipient = await make_recipient(house)
        here.save()
        async with here.gateway() as house:
            batch = await make_batch(house, recipient, "5.00")
            assert (await begin(house, batch)).status == 200
        here.put_back()
        told = await here.reconciled(code=1)
        (lost,) = here.service.world().batches
        found = [(one["kind"], one["id"], one["upstream"]) for one in told["findings"]]
        assert found == [("unknown", batch, lost)]
        assert told["cleared"] is True
        told = await here.reconciled()
        assert (told["findings"], told["unknown"][0]["id"]) == ([], lost)
        async with here.gateway() as house:  # who was told that there is none would make it anew
            assert (await done(house, "GET", f"/batches/{batch}"))["batch"]["amount"] == "5.00"
            await says(tmp_path, "unfreeze", "--all")
            assert (await begin(house, batch)).status == 406


async def test_what_was_found_is_looked_at_before_anything_is_started(tmp_path: Path) -> None:
    async with town(tmp_path, inferred=False, processing_seconds=60) as here:
        async with here.gateway() as house:
            batch = await make_batch(house, await make_recipient(house), "5.00")
            await edit(house, batch)
        here.save()
        async with here.gateway() as house:
            assert (await begin(house, batch)).status == 200
        here.put_back()
        async with here.gateway() as house:
            assert is_checking(await begin(house, batch))
            told = await here.reconciled(code=1)
            assert (told["cleared"], told["frozen"]) == (True, True)
            # As who asks again all the time: of what it pays no more is known here than before.
            assert "stopped" in (await begin(house, batch)).body["errors"][0]["message"]
            assert len(here.service.starts) == 1


async def test_recipients_made_since_the_backup_are_found_again_by_the_ids_that_clients_know(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, recipient_id_length=20, max_page_size=5) as here:
        async with here.gateway() as house:
            for number in range(15):
                await make_recipient(house, f"early-{number}")
        here.save()
        async with here.gateway() as house:
            recipient = await make_recipient(house, "late")
            assert recipient not in here.service.world().recipients
        here.put_back()
        told = await here.reconciled()
        assert (told["cleared"], told["findings"]) == (True, [])
        # The second page has none that clients do not know: all after it are older.
        assert len(here.service.calls("GET", "/v1/recipients")) == 2
        async with here.gateway() as house:
            path = f"/recipients/{recipient}"
            assert (await done(house, "GET", path))["recipient"]["id"] == recipient


async def test_the_last_words_say_whether_batches_are_started_and_what_comes_first(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, inferred=False) as here:
        await put_back_after_more(here)
        part = await says(tmp_path, "reconcile", "--merchant", "demo", code=1)
        assert last_line(part.stdout) == (
            "The state was restored: no batch is started yet; run `reconcile` without --merchant "
            "and --environment."
        )
        here.service.faults.append(Fault("GET", "/v1/batch/*/summary", status=503))
        unread = await says(tmp_path, "reconcile", code=2)
        assert "no batch is started yet, because something could not be read" in unread.stdout
        found = await says(tmp_path, "reconcile", code=1)
        assert "there are findings, so all writes are now frozen" in last_line(found.stdout)
        assert "run `payout-gateway unfreeze --all`" in last_line(found.stdout)
        assert "restored" not in (await says(tmp_path, "reconcile")).stdout


def last_line(said: str) -> str:
    return said.splitlines()[-1]


async def test_where_the_service_lists_no_batches_that_is_a_finding(tmp_path: Path) -> None:
    async with town(tmp_path, inferred=False) as here:
        await put_back_after_more(here)
        told = await here.reconciled(code=1)
        assert [one["kind"] for one in told["findings"]] == ["unlisted"]
        assert "compare it in the dashboard" in told["findings"][0]["what_to_do"]
        assert told["cleared"] is True
        assert (await here.reconciled())["findings"] == []


async def test_a_machine_without_a_mark_notices_nothing_and_makes_one(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        batch = await put_back_after_more(here)
        here.mark.unlink()
        async with here.gateway() as house:
            assert (await begin(house, batch)).status == 200
        assert read_mark(here.mark).number > 0


async def test_a_mark_that_cannot_be_kept_is_told_of_and_stops_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        nowhere = here.settings.state.model_copy(update={"mark_file": tmp_path / "no" / "mark"})
        async with here.gateway(here.settings.model_copy(update={"state": nowhere})) as house:
            await make_recipient(house)
            await asyncio.sleep(1.5)
            await make_recipient(house, "bob")
            await asyncio.sleep(1.5)
        assert logged(tmp_path).count("restore_mark_not_written") == 1


async def test_a_mark_that_is_none_is_told_of_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    await import_lines(settings_for(tmp_path, "http://127.0.0.1:9"), [KEY])
    (tmp_path / "gateway.key.mark").write_text("{}")
    ended = command("serve", folder=tmp_path)
    assert ended.returncode == 2
    assert "gateway.key.mark cannot be read" in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_a_state_that_is_put_back_under_a_running_gateway_is_noticed(tmp_path: Path) -> None:
    async with town(tmp_path) as here, here.gateway() as house:
        batch = await make_batch(house, await make_recipient(house), "5.00")
        await until(lambda: read_mark(here.mark).number == 2)
        # As a database's server does it: without the gateway's hearing of it.
        async with open_store(here.settings.state) as store:
            await execute(store, delete(journal).where(journal.c.number == 2))

        async def is_noticed() -> bool:
            async with open_store(here.settings.state) as store:
                return (await standing(store)).restored

        await eventually(is_noticed)
        assert is_checking(await begin(house, batch))


async def test_the_real_commands_say_so_too(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        batch = await put_back_after_more(here)
        base_url = here.settings.environments.configured()["sandbox"].base_url
        (tmp_path / "gateway.toml").write_text(configuration(base_url))
        headers = {"X-API-Key": KEY["api_key"]}
        async with serving(tmp_path) as gateway, aiohttp.ClientSession(headers=headers) as session:

            async def asked() -> int:
                url = f"{gateway.url}/v1/batches/{batch}/start-processing"
                async with session.post(url) as answer:
                    return answer.status

            assert await asked() == 500
            (line,) = [one for one in gateway.lines() if one["event"] == "database_restored"]
            assert {"reason", "hint"} <= line.keys()
            assert line["level"] == "error"
            ended = await asyncio.to_thread(command, "reconcile", folder=tmp_path)
            assert (ended.returncode, ended.stderr) == (0, "")
            assert "The state was restored: batches are started again." in ended.stdout
            assert await asked() == 200
            assert await gateway.ends() == 0
