"""The list of recipients with an index, through a whole gateway: its cost and its rows.

The expected answers come from ``tests.test_recipient_lists``, which computes them from all recipients of the
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
from gateway.reads.recipient_cache import RemoteChanges
from gateway.server.app import run_gateway
from gateway.simulator import recipients
from gateway.simulator.state import Recipient
from gateway.storage import Tenant, open_store
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.operator_commands import wait_until_async
from tests.running_gateway import KEY, open_gateway
from tests.signed_requests import CLIENT
from tests.simulator import RequestHandler, Service
from tests.test_recipient_lists import (
    PATH,
    ExpectedList,
    GatewayAndService,
    Handle,
    change_recipients,
    extract_ids,
    is_internal,
    iterate_queries,
    open_gateway_and_service,
    serve_handler,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TENANT = Tenant(KEY["merchant"], KEY["environment"])
CITY_ORDER = {"orderBy": "city", "sortBy": "asc"}
MAX_CALLS = 3
"""The most upstream calls of a query once the index is filled."""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[False, True], ids=["hidden", "listed"]
)
async def warm_index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayAndService]:
    """A thousand recipients, some of them changed and deleted through the gateway."""
    folder = tmp_path_factory.mktemp("index")
    async with open_gateway_and_service(
        folder, seeded=1000, index=True, lists_archived=request.param
    ) as setup:
        await change_recipients(setup)
        await setup.list_recipients(**CITY_ORDER)
        yield setup


async def test_indexed_queries_are_correct_in_three_calls(warm_index: GatewayAndService) -> None:
    index_count = 0
    for query in iterate_queries(warm_index, 60):
        call_count = warm_index.count_calls()
        response = await warm_index.list_recipients(**query)
        assert (extract_ids(response), response.body["meta"]) == ExpectedList(
            warm_index, query
        ).build_answer(), query
        assert warm_index.count_calls() - call_count <= MAX_CALLS, query
        index_count += warm_index.count_calls() - call_count > 1
    assert index_count > 20, "the queries do not try what they are to try"


async def test_indexed_row_equals_the_recipient(warm_index: GatewayAndService) -> None:
    rows = (await warm_index.list_recipients(status="inactive", pageSize=50)).body["recipients"]
    assert len(rows) == 20
    for row in rows[:5]:
        assert (await warm_index.gateway.request("GET", f"{PATH}/{row['id']}")).body[
            "recipient"
        ] == row


async def test_changes_through_the_gateway_are_in_the_next_list(tmp_path: Path) -> None:
    """Each of several concurrent clients sees its own completed changes."""
    async with open_gateway_and_service(tmp_path, seeded=400, index=True) as setup:
        await setup.list_recipients(**CITY_ORDER)
        sample = random.Random("some").sample(setup.list_visible(), 24)

        async def load_ids(**query: Any) -> list[str]:
            """Lists ids; during concurrent changes a list may fail, but is never incomplete."""
            async with asyncio.timeout(60):
                while is_internal(response := await setup.list_recipients(pageSize=100, **query)):
                    pass
            return extract_ids(response)

        async def run_client(number: int, own_recipients: list[Recipient]) -> None:
            city = f"City {number}"
            for entry in own_recipients:
                address = {"address": {**entry.address, "city": city}}
                assert (
                    await setup.gateway.request("PATCH", f"{PATH}/{entry.id}", address)
                ).status == 200
                assert entry.id in await load_ids(city=city)
            for entry in own_recipients[:2]:
                assert (await setup.gateway.request("DELETE", f"{PATH}/{entry.id}")).status == 200
                assert entry.id not in await load_ids(city=city)
            body = {"type": "business", "name": city, "email": f"{number}@example.com"}
            new = (await setup.gateway.request("POST", PATH, body)).body["recipient"]["id"]
            assert new in await load_ids(search=city)
            disable_response = await setup.gateway.request(
                "PATCH", f"{PATH}/{new}", {"status": "disabled"}
            )
            assert disable_response.status == 200
            assert new in await load_ids(status="disabled")

        await asyncio.gather(*(run_client(number, sample[number::4]) for number in range(4)))
        call_count = setup.count_calls()
        response = await setup.list_recipients(orderBy="id", sortBy="asc", pageSize=1000)
        assert extract_ids(response) == sorted(recipient.id for recipient in setup.list_visible())
        assert setup.count_calls() - call_count <= MAX_CALLS


@pytest.mark.parametrize("filters_archived", [True, False], ids=["told", "not told"])
async def test_recipient_archived_elsewhere_is_not_listed(
    tmp_path: Path,
    filters_archived: bool,
) -> None:
    """It takes three calls if the service filters by that status."""
    async with open_gateway_and_service(
        tmp_path, seeded=1000, index=True, filters_archived=filters_archived
    ) as setup:
        await setup.list_recipients(**CITY_ORDER)
        call_counts = []
        for number in range(4):
            visible_recipients = setup.list_visible()
            address_change = {
                "address": {**visible_recipients[0].address, "city": f"City {number}"}
            }
            assert (
                await setup.gateway.request(
                    "PATCH", f"{PATH}/{visible_recipients[0].id}", address_change
                )
            ).status == 200
            assert (
                await setup.gateway.request("DELETE", f"{PATH}/{visible_recipients[1].id}")
            ).status == 200
            recipients.archive_recipients(
                setup.service.find_or_create_tenant(), visible_recipients[2 : 4 + number]
            )
            call_count = setup.count_calls()
            response = await setup.list_recipients(orderBy="id", sortBy="asc", pageSize=1000)
            call_counts.append(setup.count_calls() - call_count)
            assert extract_ids(response) == sorted(
                recipient.id for recipient in setup.list_visible()
            )
            assert await setup.load_ids(city=f"City {number}") == [visible_recipients[0].id]
    assert max(call_counts) == MAX_CALLS if filters_archived else min(call_counts) > MAX_CALLS


async def test_list_of_one_page_is_not_indexed(tmp_path: Path) -> None:
    """It takes one call, and finds changes that do not move the update time."""
    async with open_gateway_and_service(tmp_path, seeded=200, index=True) as setup:
        for entry in [recipient for recipient in setup.list_visible() if recipient.primary_account][
            :3
        ]:
            query = {
                **WALLETS,
                "payoutMethod": entry.primary_account.type if entry.primary_account else "",
            }
            assert entry.id in await setup.load_ids(**query)
            entry.accounts.clear()
            call_count = setup.count_calls()
            assert entry.id not in await setup.load_ids(**query)
            assert setup.count_calls() - call_count == 1


def _build_undated_service(service: Service) -> Handle:
    """Builds a service whose update times ignore changes of accounts."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        dates = {
            recipient.id: recipient.updated_at
            for recipient in service.find_or_create_tenant().recipients.values()
        }
        response = await RequestHandler(service).handle(request)
        if "/accounts" in request.path and request.method != "GET":
            for recipient in service.find_or_create_tenant().recipients.values():
                recipient.updated_at = dates.get(recipient.id, recipient.updated_at)
        return response

    return handle


WALLET = {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "a@example.com"}}}
WALLETS = {"payoutMethod": "wallet", "orderBy": "city", "pageSize": 1000}


async def test_account_change_without_update_time_is_in_the_next_list(tmp_path: Path) -> None:
    async with open_gateway_and_service(
        tmp_path, seeded=400, index=True, handle=_build_undated_service
    ) as setup:
        legacy_recipient, signed_recipient = [
            recipient
            for recipient in setup.list_visible()
            if recipient.primary_account is None and recipient.status != "suspended"
        ][:2]
        assert not {legacy_recipient.id, signed_recipient.id} & set(await setup.load_ids(**WALLETS))
        path = f"{PATH}/{legacy_recipient.id}/payout-methods"
        assert (await setup.gateway.request("POST", path, WALLET)).status == 200
        assert legacy_recipient.id in await setup.load_ids(**WALLETS)
        account = {"type": "wallet", "emailAddress": "b@example.com", "primary": True}
        assert (
            await _send_signed(setup, "POST", f"{PATH}/{signed_recipient.id}/accounts", account)
            == 200
        )
        assert signed_recipient.id in await setup.load_ids(**WALLETS)
        call_count = setup.count_calls()
        await setup.list_recipients(**WALLETS)
        assert setup.count_calls() - call_count <= MAX_CALLS


async def _send_signed(setup: GatewayAndService, method: str, target: str, body: Any) -> int:
    data = json.dumps(body).encode()
    lines = CLIENT.build_headers(method, target, data, stamp=int(time.time()))
    headers = dict(line.split(": ", 1) for line in lines) | {"Content-Type": "application/json"}
    url = URL(setup.gateway.running.url + target, encoded=True)
    async with setup.gateway.session.request(method, url, data=data, headers=headers) as response:
        return response.status


async def test_journal_reports_changes_to_other_processes(tmp_path: Path) -> None:
    async with (
        open_gateway_and_service(tmp_path, seeded=120) as setup,
        open_store(setup.gateway.settings.state) as store,
    ):
        recipient = next(
            recipient for recipient in setup.list_visible() if recipient.primary_account is None
        )
        remote_changes, other_changes = (
            RemoteChanges(store, TENANT),
            RemoteChanges(store, Tenant("bolt", "sandbox")),
        )
        assert not await remote_changes()
        path = f"{PATH}/{recipient.id}/payout-methods"
        assert (await setup.gateway.request("POST", path, WALLET)).status == 200
        assert await remote_changes() == {recipient.id}
        assert not await other_changes()
        await wait_until_async(lambda: _has_no_changes(remote_changes), seconds=30)


async def _has_no_changes(remote_changes: RemoteChanges) -> bool:
    return not await remote_changes()


async def test_change_by_one_process_is_in_the_next_list_of_another(
    postgres: State,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    """Two gateways share a database; the service's update times ignore accounts."""
    service = Service(seed=1)
    service.seed_recipients(400, seed=7)
    state_section = {"url": postgres.url, "encryption_key_file": str(postgres.encryption_key_file)}
    async with (
        serve_handler(_build_undated_service(service)) as url,
        open_gateway(tmp_path, url, state=state_section, lists={"index": True}) as gateway,
        run_gateway(gateway.settings) as running,
    ):
        first_setup, second_setup = (
            GatewayAndService(gateway, service),
            GatewayAndService(replace(gateway, running=running), service),
        )
        for setup in (first_setup, second_setup):
            await setup.list_recipients(**WALLETS)
        changed_recipient, deleted_recipient = [
            recipient
            for recipient in first_setup.list_visible()
            if recipient.primary_account is None and recipient.status != "suspended"
        ][:2]
        path = f"{PATH}/{changed_recipient.id}/payout-methods"
        assert (await first_setup.gateway.request("POST", path, WALLET)).status == 200
        assert changed_recipient.id in await second_setup.load_ids(**WALLETS)
        assert (
            await first_setup.gateway.request("DELETE", f"{PATH}/{deleted_recipient.id}")
        ).status == 200
        response = await second_setup.list_recipients(orderBy="id", sortBy="asc", pageSize=1000)
        assert extract_ids(response) == sorted(
            recipient.id for recipient in second_setup.list_visible()
        )


async def test_index_is_not_stored(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, seeded=400, index=True) as setup:
        response = await setup.list_recipients(**CITY_ORDER)
        assert setup.count_calls() > MAX_CALLS
        email = response.body["recipients"][0]["email"]
    file_contents = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert file_contents
    assert not [entry for entry in file_contents if email.encode() in entry]


async def test_query_of_the_service_takes_one_call(warm_index: GatewayAndService) -> None:
    call_count = warm_index.count_calls()
    await warm_index.list_recipients(orderBy="name")
    # Lists of a service that includes archived recipients must be filtered here.
    assert warm_index.count_calls() - call_count == (2 if warm_index.lists_archived else 1)


async def test_disabled_index_reads_the_list_for_each_query(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, seeded=600) as setup:
        call_counts = []
        for _ in range(2):
            call_count = setup.count_calls()
            await setup.list_recipients(**CITY_ORDER)
            call_counts.append(setup.count_calls() - call_count)
        assert call_counts[0] == call_counts[1] > MAX_CALLS
