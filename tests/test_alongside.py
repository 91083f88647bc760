"""Shadow traffic: reads are compared at both services while clients are served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway.config.settings import Comparing
from tests.gateway.compare.towns import Heard, Said
from tests.gateway.compare.towns import open_town as open_service
from tests.operating import eventually
from tests.payday import done, make_batch, make_recipient
from tests.valley import NAME, Valley
from tests.valley import open_valley as open_any


def open_valley(folder: Path, **more: Any) -> Any:
    """Opens a gateway whose answers come from the current service by default."""
    sections = more.pop("sections", {})
    comparing = {"answers": "current", **sections.get("comparing", {})}
    return open_any(folder, sections={**sections, "comparing": comparing}, **more)


async def compare(here: Valley, path: str = "/v1/profile/balances") -> None:
    """Switches the key, and waits until both services are called."""
    await here.says("modes", "set", "--key", NAME, "compare", "--yes")

    async def both() -> bool:
        legacy, current = here.asked_legacy(), here.asked_current()
        await here.house.ask("GET", path)
        await asyncio.sleep(0.05)
        return here.asked_legacy() > legacy and here.asked_current() > current

    await eventually(both)


async def report(here: Valley, *words: str) -> Any:
    done = await asyncio.to_thread(_report, here, *words)
    (key,) = json.loads(done.stdout)["keys"]
    assert done.exit_code == (0 if key["ready"] else 1)
    return key


def _report(here: Valley, *words: str) -> Any:
    return _run(here, "--json", *words)


def _run(here: Valley, *words: str) -> Any:
    from click.testing import CliRunner

    from gateway.cli import gateway

    arguments = ["compare", "report", *words, "--config", f"{here.folder}/gateway.toml"]
    return CliRunner().invoke(gateway, arguments)


async def counted(here: Valley, operation: str, number: int, what: str = "compared") -> Any:
    """Returns the report once it counts at least ``number`` of an operation."""
    found: list[Any] = []

    async def so() -> bool:
        if not json.loads((await asyncio.to_thread(_report, here)).stdout)["keys"]:
            return False
        found[:] = [await report(here)]
        counts = {one["operation"]: one[what] for one in found[0]["operations"]}
        return counts.get(operation, 0) >= number

    await eventually(so)
    return found[0]


async def test_the_current_service_answers_and_the_legacy_one_is_asked_alongside(
    tmp_path: Path,
) -> None:
    async with open_valley(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await compare(here)
        for _ in range(3):
            await done(here.house, "GET", f"/recipients/{recipient}")
        told = await counted(here, "read_recipient", 3)
        assert [one for one in told["differences"] if one["operation"] == "read_recipient"] == []
        assert "list_batches" in told["never_seen"]
        assert "read_recipient" not in told["never_seen"]


async def test_the_legacy_service_answers_where_that_is_said(tmp_path: Path) -> None:
    sections = {"comparing": {"answers": "legacy"}}
    async with open_valley(tmp_path, apart=True, sections=sections) as here:
        assert Comparing().answers == "legacy"
        await compare(here)
        made = await make_recipient(here.house)
        assert made in here.legacy.world().recipients
        assert made not in here.current.world().recipients
        assert (await here.house.ask("GET", f"/v1/recipients/{made}")).status == 200
        told = await counted(here, "read_recipient", 1)
        assert told["ready"] is False
        assert [
            (one["kind"], one["place"], one["answers"])
            for one in told["differences"]
            if one["operation"] == "read_recipient"
        ] == [("status", "@status", 1)]
        shown = (await asyncio.to_thread(_run, here)).stdout
        assert "read_recipient: status at @status, in 1 answer\n" in shown
        assert "`cutover import`" in shown
        assert "Never compared: " in shown


async def test_what_differs_is_counted_by_field_and_without_values(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await here.directly("PATCH", f"/v1/recipients/{recipient}", {"status": "disabled"})
        await compare(here)
        await done(here.house, "GET", f"/recipients/{recipient}")
        told = await counted(here, "read_recipient", 1)
        (found,) = [one for one in told["differences"] if one["operation"] == "read_recipient"]
        assert (found["kind"], found["place"]) == ("value", "recipient.status")
        assert told["unexplained"] >= 1
        assert "ada" not in json.dumps(told).lower()
        (tmp_path / "rules.toml").write_text(
            '[[ignore]]\npath = "recipient.status"\noperation = "read_recipient"\n'
            'reason = "to be imported"\n'
        )
        explained = await report(here, "--rules", str(tmp_path / "rules.toml"))
        assert explained["unexplained"] == told["unexplained"] - 1
        (tmp_path / "rules.toml").write_text(
            '[[present]]\npath = "recipient.status"\nreason = "each has one of its own"\n'
        )
        present = await report(here, "--rules", str(tmp_path / "rules.toml"))
        assert present["unexplained"] == explained["unexplained"]
        (tmp_path / "rules.toml").write_text(
            '[[ignore]]\npath = "recipient"\nreason = "and all that is below it"\n'
        )
        below = await report(here, "--rules", str(tmp_path / "rules.toml"))
        assert below["unexplained"] == explained["unexplained"]
        forgot = await here.says("compare", "report", "--forget", "--key", NAME, "--yes")
        assert forgot.startswith(f"Reset the comparison statistics of key {NAME};")
        assert json.loads((await asyncio.to_thread(_report, here)).stdout) == {"keys": []}
        again = await here.says("compare", "report", "--forget", "--key", NAME, "--yes", code=2)
        assert "nothing was compared for a key of this name" in again


async def test_what_passes_is_no_difference(tmp_path: Path) -> None:
    """A value changes between the two reads, and is equal on the next comparison."""
    changed = False

    def says(_one: Heard) -> Any:
        nonlocal changed
        answer = {"ok": True, "balances": {}} if changed else {"ok": True, "balances": {"old": 1}}
        changed = True
        return Said(answer)

    async with open_service(lambda _: {"ok": True, "balances": []}) as current:
        async with open_service(says) as legacy:
            environments = {"sandbox": {"base_url": current.url, "legacy_base_url": legacy.url}}
            async with open_valley(tmp_path, sections={"environments": environments}) as here:
                await here.says("modes", "set", "--key", NAME, "compare", "--yes")

                async def asked() -> bool:
                    await here.house.ask("GET", "/v1/profile/balances")
                    return len(legacy.heard) > 1

                await eventually(asked)
                told = await counted(here, "read_balances", 1)
                assert told["differences"] == []


async def test_no_client_waits_for_the_other_service(tmp_path: Path) -> None:
    let = asyncio.Event()
    waiting: list[Heard] = []

    async def says(one: Heard) -> Any:
        waiting.append(one)
        await let.wait()
        return {"ok": True}

    sections = {"comparing": {"queue": 2}}
    async with open_service(says) as legacy:
        async with open_valley(tmp_path, legacy_url=legacy.url, sections=sections) as here:
            await here.says("modes", "set", "--key", NAME, "compare", "--yes")

            async def asked() -> bool:
                assert (await here.house.ask("GET", "/v1/profile/balances")).status == 200
                return bool(waiting)

            await eventually(asked)
            statuses = [
                (await here.house.ask("GET", "/v1/profile/balances")).status for _ in range(20)
            ]
            assert statuses == [200] * 20
            assert not let.is_set()
            assert len(waiting) <= 4, "so many side by side, and no more"
            told = await counted(here, "read_balances", 10, "dropped")
            assert told["compared"] == 0
            let.set()


async def test_a_service_that_fails_is_no_difference(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        await compare(here)
        here.breaks_legacy("GET", "/v1/recipients", status=503, body=b"{}", times=3)
        here.breaks_legacy("GET", "/v1/recipients", close="before", times=3)
        for _ in range(6):
            assert (await here.house.ask("GET", "/v1/recipients")).status == 200
        told = await counted(here, "list_recipients", 6, "failed")
        assert [one for one in told["differences"] if one["operation"] == "list_recipients"] == []


async def test_writes_and_batches_that_one_service_has_are_not_asked_twice(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await compare(here)
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        await done(here.house, "GET", f"/batches/{batch}")
        await done(here.house, "GET", f"/batches/{batch}/summary")
        await done(here.house, "GET", "/batches")
        await counted(here, "list_batches", 1)
        assert here.asked_legacy("POST", "*") == 0
        assert here.asked_legacy("GET", f"/v1/batches/{batch}*") == 0
        assert here.asked_legacy("GET", "/v1/batches") >= 1


async def test_few_of_many_can_be_compared(tmp_path: Path) -> None:
    async with open_valley(tmp_path, sections={"comparing": {"sample": 0.000001}}) as here:
        await here.says("modes", "set", "--key", NAME, "compare", "--yes")
        await asyncio.sleep(1)
        for _ in range(20):
            assert (await here.house.ask("GET", "/v1/profile/balances")).status == 200
        assert here.asked_legacy() == 0
