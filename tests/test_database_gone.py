"""PostgreSQL goes away and comes back, and the gateway that uses it is not restarted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import make_url

from gateway.simulator import Fault, Service
from gateway.storage.keyfile import make_key_file
from tests.gateway.store.conftest import made_database
from tests.house import House
from tests.operating import eventually
from tests.payday import make_recipient, open_town
from tests.proxy import Proxy, proxy
from tests.scrape import scraped
from tests.sockets import until
from tests.test_faults import person


@pytest.fixture
def database() -> Iterator[str]:
    yield from made_database()


def through(between: Proxy, database: str, folder: Path) -> dict[str, str]:
    """A state section: a database by way of a proxy."""
    make_key_file(folder / "gateway.key")
    url = make_url(database).set(host="127.0.0.1", port=between.port)
    return {"url": url.render_as_string(hide_password=False)}


async def is_ready(house: House) -> bool:
    async with house.session.get(f"{house.running.admin_url}/readyz") as answer:
        return answer.status == 200


async def status(house: House, path: str) -> int:
    return (await house.ask("GET", f"/v1{path}")).status


async def test_what_needs_no_state_goes_on_and_all_the_rest_is_there_again_without_a_restart(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.metrics_page.MAX_AGE_SECONDS", 0)
    where = make_url(database)
    async with proxy(where.host or "127.0.0.1", where.port or 5432) as between:
        state = through(between, database, tmp_path)
        async with open_town(tmp_path, Service(seed=1), state=state) as (house, simulator):
            recipient = await make_recipient(house)
            made = len(simulator.service.calls("POST", "/v1/recipients"))
            for other in ({"X-API-Key": "one-more"}, {"X-API-Key": "another"}):
                await between.cut()
                assert await status(house, "/profile/balances") == 200, "with a key that is known"
                assert await status(house, "/geography/countries/US") == 200
                gone = await house.ask("GET", f"/v1/recipients/{recipient}")
                assert (gone.status, gone.body["errors"][0]["code"]) == (
                    500,
                    "internal_server_error",
                )
                unknown = await house.ask("GET", "/v1/recipients", headers=other)
                assert unknown.status == 500, "nobody can say whether the key exists"
                async with house.session.get(f"{house.running.admin_url}/readyz") as answer:
                    assert answer.status == 503
                    assert "state" in (await answer.json())["faults"]
                gone_figures = await scraped(house.session, house.running.admin_url)
                assert gone_figures.sum("payout_gateway_database_up") == 0
                assert gone_figures.of("payout_gateway_api_keys") == []
                assert math.isnan(gone_figures.sum("payout_gateway_in_doubt_writes"))
                await between.mend()
                assert await status(house, f"/recipients/{recipient}") == 200
                assert await status(house, "/recipients") == 200
                unknown = await house.ask("GET", "/v1/recipients", headers=other)
                assert unknown.status == 403
                await eventually(partial(is_ready, house))
                figures = await scraped(house.session, house.running.admin_url)
                assert figures.sum("payout_gateway_database_up") == 1
                assert figures.sum("payout_gateway_database_errors_total") > 0
            await make_recipient(house, "eve")
            assert len(simulator.service.calls("POST", "/v1/recipients")) == made + 1


async def test_without_it_nothing_leaves_and_what_had_left_is_not_sent_again(
    tmp_path: Path, database: str
) -> None:
    where, service = make_url(database), Service(seed=1)
    async with proxy(where.host or "127.0.0.1", where.port or 5432) as between:
        state = through(between, database, tmp_path)
        async with open_town(tmp_path, service, state=state) as (house, _simulator):
            service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
            first = asyncio.ensure_future(house.ask("POST", "/v1/recipients", person("one")))
            await until(lambda: service.created["recipient"] == 1)
            await between.cut()
            lost = await first
            assert "unknown" in lost.body["errors"][0]["message"], lost.text
            kept = await house.ask("POST", "/v1/recipients", person("two"))
            for got in (lost, kept):
                code = got.body["errors"][0]["code"]
                assert (got.status, code) == (500, "internal_server_error")
            assert service.created["recipient"] == 1
            await between.mend()
            for name in ("one", "two"):
                again = await house.ask("POST", "/v1/recipients", person(name))
                assert again.status == 200, again.text
            assert service.created["recipient"] == 2
