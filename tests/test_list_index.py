"""The list of recipients with an index, through a whole gateway: its cost and its rows.

The expected answers come from ``tests.test_lists``, which computes them from all recipients of the
service.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from gateway.config.settings import State
from gateway.reads.index import Elsewhere
from gateway.server.app import run_gateway
from gateway.simulator import Service, recipients
from gateway.simulator.face import Face
from gateway.simulator.state import Recipient
from gateway.storage import Tenant, open_store
from tests.gateway.store.conftest import database, postgres  # noqa: F401 - fixtures
from tests.house import KEY, open_house
from tests.operating import eventually, post
from tests.signed import CLIENT
from tests.test_lists import (
    PATH,
    Handle,
    Meaning,
    Town,
    ids_of,
    is_internal,
    make_busy,
    queries,
    serving,
    town,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWNER = Tenant(KEY["merchant"], KEY["environment"])
BY_CITY = {"orderBy": "city", "sortBy": "asc"}
MOST = 3
"""The most upstream calls of a query once the index is filled."""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[False, True], ids=["hidden", "listed"]
)
async def warm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    """A thousand recipients, some of them changed and deleted through the gateway."""
    folder = tmp_path_factory.mktemp("index")
    async with town(folder, seeded=1000, index=True, lists_archived=request.param) as made:
        await make_busy(made)
        await made.list(**BY_CITY)
        yield made


async def test_queries_mean_what_they_meant_at_three_calls_at_most(warm: Town) -> None:
    of_index = 0
    for query in queries(warm, 60):
        before = warm.calls()
        got = await warm.list(**query)
        assert (ids_of(got), got.body["meta"]) == Meaning(warm, query).answer(), query
        assert warm.calls() - before <= MOST, query
        of_index += warm.calls() - before > 1
    assert of_index > 20, "the queries do not try what they are to try"


async def test_a_row_of_the_index_is_the_recipient_as_it_is_read_alone(warm: Town) -> None:
    rows = (await warm.list(status="inactive", pageSize=50)).body["recipients"]
    assert len(rows) == 20
    for row in rows[:5]:
        assert (await warm.house.ask("GET", f"{PATH}/{row['id']}")).body["recipient"] == row


async def test_what_is_changed_through_the_gateway_is_in_the_next_list(tmp_path: Path) -> None:
    """Each of several concurrent clients sees its own completed changes."""
    async with town(tmp_path, seeded=400, index=True) as made:
        await made.list(**BY_CITY)
        some = random.Random("some").sample(made.there(), 24)

        async def ids(**query: Any) -> list[str]:
            """Lists ids; during concurrent changes a list may fail, but is never incomplete."""
            async with asyncio.timeout(60):
                while is_internal(got := await made.list(pageSize=100, **query)):
                    pass
            return ids_of(got)

        async def client(number: int, its: list[Recipient]) -> None:
            city = f"City {number}"
            for each in its:
                address = {"address": {**each.address, "city": city}}
                assert (await made.house.ask("PATCH", f"{PATH}/{each.id}", address)).status == 200
                assert each.id in await ids(city=city)
            for each in its[:2]:
                assert (await made.house.ask("DELETE", f"{PATH}/{each.id}")).status == 200
                assert each.id not in await ids(city=city)
            body = {"type": "business", "name": city, "email": f"{number}@example.com"}
            new = (await made.house.ask("POST", PATH, body)).body["recipient"]["id"]
            assert new in await ids(search=city)
            disabled = await made.house.ask("PATCH", f"{PATH}/{new}", {"status": "disabled"})
            assert disabled.status == 200
            assert new in await ids(status="disabled")

        await asyncio.gather(*(client(number, some[number::4]) for number in range(4)))
        before = made.calls()
        got = await made.list(orderBy="id", sortBy="asc", pageSize=1000)
        assert ids_of(got) == sorted(each.id for each in made.there())
        assert made.calls() - before <= MOST


@pytest.mark.parametrize("filters_archived", [True, False], ids=["told", "not told"])
async def test_who_is_archived_elsewhere_is_not_shown_while_others_are_changed_here(
    tmp_path: Path,
    filters_archived: bool,
) -> None:
    """It takes three calls if the service filters by that status."""
    async with town(tmp_path, seeded=1000, index=True, filters_archived=filters_archived) as made:
        await made.list(**BY_CITY)
        costs = []
        for number in range(4):
            there = made.there()
            renamed = {"address": {**there[0].address, "city": f"City {number}"}}
            assert (await made.house.ask("PATCH", f"{PATH}/{there[0].id}", renamed)).status == 200
            assert (await made.house.ask("DELETE", f"{PATH}/{there[1].id}")).status == 200
            recipients.archive(made.service.world(), there[2 : 4 + number])
            before = made.calls()
            got = await made.list(orderBy="id", sortBy="asc", pageSize=1000)
            costs.append(made.calls() - before)
            assert ids_of(got) == sorted(each.id for each in made.there())
            assert await made.ids(city=f"City {number}") == [there[0].id]
    assert max(costs) == MOST if filters_archived else min(costs) > MOST


async def test_a_list_that_fits_on_a_page_is_read_for_each_question(tmp_path: Path) -> None:
    """It takes one call, and finds changes that do not move the update time."""
    async with town(tmp_path, seeded=200, index=True) as made:
        for each in [each for each in made.there() if each.primary][:3]:
            asked = {**WALLETS, "payoutMethod": each.primary.type if each.primary else ""}
            assert each.id in await made.ids(**asked)
            each.accounts.clear()
            before = made.calls()
            assert each.id not in await made.ids(**asked)
            assert made.calls() - before == 1


def _undated(service: Service) -> Handle:
    """Builds a service whose update times ignore changes of accounts."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        dates = {each.id: each.updated_at for each in service.world().recipients.values()}
        answer = await Face(service).handle(request)
        if "/accounts" in request.path and request.method != "GET":
            for each in service.world().recipients.values():
                each.updated_at = dates.get(each.id, each.updated_at)
        return answer

    return handle


WALLET = {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "a@example.com"}}}
WALLETS = {"payoutMethod": "wallet", "orderBy": "city", "pageSize": 1000}


async def test_an_account_that_no_update_date_tells_of_is_in_the_next_list(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=400, index=True, handle=_undated) as made:
        legacy, signed = [
            each for each in made.there() if each.primary is None and each.status != "suspended"
        ][:2]
        assert not {legacy.id, signed.id} & set(await made.ids(**WALLETS))
        path = f"{PATH}/{legacy.id}/payout-methods"
        assert (await made.house.ask("POST", path, WALLET)).status == 200
        assert legacy.id in await made.ids(**WALLETS)
        account = {"type": "wallet", "emailAddress": "b@example.com", "primary": True}
        assert await _signed(made, "POST", f"{PATH}/{signed.id}/accounts", account) == 200
        assert signed.id in await made.ids(**WALLETS)
        before = made.calls()
        await made.list(**WALLETS)
        assert made.calls() - before <= MOST


async def _signed(made: Town, method: str, target: str, body: Any) -> int:
    data = json.dumps(body).encode()
    lines = CLIENT.headers(method, target, data, stamp=int(time.time()))
    headers = dict(line.split(": ", 1) for line in lines) | {"Content-Type": "application/json"}
    url = URL(made.house.running.url + target, encoded=True)
    async with made.house.session.request(method, url, data=data, headers=headers) as answer:
        return answer.status


async def test_the_journal_tells_other_processes_what_was_changed(tmp_path: Path) -> None:
    async with (
        town(tmp_path, seeded=120) as made,
        open_store(made.house.settings.state) as store,
    ):
        each = next(each for each in made.there() if each.primary is None)
        elsewhere, another = Elsewhere(store, OWNER), Elsewhere(store, Tenant("bolt", "sandbox"))
        assert not await elsewhere()
        path = f"{PATH}/{each.id}/payout-methods"
        assert (await made.house.ask("POST", path, WALLET)).status == 200
        assert await elsewhere() == {each.id}
        assert not await another()
        await eventually(lambda: _is_told(elsewhere), seconds=30)


async def _is_told(elsewhere: Elsewhere) -> bool:
    return not await elsewhere()


async def test_what_one_process_changed_is_in_the_next_list_of_another(
    postgres: State,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    """Two gateways share a database; the service's update times ignore accounts."""
    service = Service(seed=1)
    service.seed_recipients(400, seed=7)
    its = {"url": postgres.url, "encryption_key_file": str(postgres.encryption_key_file)}
    async with (
        serving(_undated(service)) as url,
        open_house(tmp_path, url, state=its, lists={"index": True}) as house,
        run_gateway(house.settings) as running,
    ):
        here, there = Town(house, service), Town(replace(house, running=running), service)
        for made in (here, there):
            await made.list(**WALLETS)
        one, gone = [
            each for each in here.there() if each.primary is None and each.status != "suspended"
        ][:2]
        path = f"{PATH}/{one.id}/payout-methods"
        assert (await here.house.ask("POST", path, WALLET)).status == 200
        assert one.id in await there.ids(**WALLETS)
        assert (await here.house.ask("DELETE", f"{PATH}/{gone.id}")).status == 200
        got = await there.list(orderBy="id", sortBy="asc", pageSize=1000)
        assert ids_of(got) == sorted(each.id for each in there.there())


async def test_nothing_of_the_index_is_stored(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=400, index=True) as made:
        got = await made.list(**BY_CITY)
        assert made.calls() > MOST
        email = got.body["recipients"][0]["email"]
    held = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert held
    assert not [one for one in held if email.encode() in one]


async def test_a_question_of_the_service_s_own_is_one_call_all_the_same(warm: Town) -> None:
    before = warm.calls()
    await warm.list(orderBy="name")
    # Lists of a service that includes archived recipients must be filtered here.
    assert warm.calls() - before == (2 if warm.lists_archived else 1)


async def test_an_operator_s_command_drops_the_index_of_a_running_gateway(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=30) as here:
        here.service.seed_recipients(600, seed=7)
        assert here.house.settings.lists.index, "on unless it is switched off"

        async def cost() -> int:
            before = here.sent("GET", PATH)
            got = await here.house.ask("GET", f"{PATH}?orderBy=city")
            assert got.status == 200
            return here.sent("GET", PATH) - before

        assert await cost() > MOST
        assert await cost() <= MOST
        told = await here.told("index", "drop", "--merchant", "demo")
        assert told == {"merchant": "demo", "environment": None}

        async def is_dropped() -> bool:
            return await cost() > MOST

        await eventually(is_dropped, seconds=30)
        assert await cost() <= MOST
        said = await here.says("index", "drop", "--environment", "sandbox")
        assert "every merchant, sandbox" in said.output
        said = await here.says("index", "drop", "--merchant", "nobody", code=2)
        assert "no merchant of this name" in said.output


async def test_off_the_list_is_read_for_each_question(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=600) as made:
        costs = []
        for _ in range(2):
            before = made.calls()
            await made.list(**BY_CITY)
            costs.append(made.calls() - before)
        assert costs[0] == costs[1] > MOST
