"""An outage of PostgreSQL, and recovery without a restart of the gateway."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import make_url

from gateway.storage.key_file import create_key_file
from tests.gateway.storage.conftest import POSTGRES_URL, create_temporary_database, run_statements
from tests.metrics_scrape import fetch_metrics
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient, open_gateway_and_service
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Fault, Service
from tests.sockets import wait_until
from tests.tcp_proxy import TcpProxy, open_tcp_proxy
from tests.test_upstream_faults import build_person


@pytest.fixture
def database() -> Iterator[str]:
    yield from create_temporary_database()


def build_state_section(tcp_proxy: TcpProxy, database: str, folder: Path) -> dict[str, str]:
    """Builds a state section whose database is behind a TCP proxy."""
    create_key_file(folder / "gateway.key")
    url = make_url(database).set(host="127.0.0.1", port=tcp_proxy.port)
    return {"url": url.render_as_string(hide_password=False)}


async def is_ready(gateway: GatewayUnderTest) -> bool:
    async with gateway.session.get(f"{gateway.running.admin_url}/readyz") as response:
        return response.status == 200


async def load_status(gateway: GatewayUnderTest, path: str) -> int:
    return (await gateway.request("GET", f"/v1{path}")).status


async def test_gateway_recovers_from_database_outage_without_restart(
    tmp_path: Path,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("gateway.server.metrics_page.MAX_AGE_SECONDS", 0)
    database_url = make_url(database)
    async with open_tcp_proxy(
        database_url.host or "127.0.0.1", database_url.port or 5432
    ) as tcp_proxy:
        state = build_state_section(tcp_proxy, database, tmp_path)
        async with open_gateway_and_service(tmp_path, Service(seed=1), state=state) as (
            gateway,
            simulator,
        ):
            recipient = await create_recipient(gateway)
            creation_count = len(simulator.service.list_requests("POST", "/v1/recipients"))
            for other_headers in ({"X-API-Key": "one-more"}, {"X-API-Key": "another"}):
                tcp_proxy.disconnect()
                assert await load_status(gateway, "/profile/balances") == 200, (
                    "with a key that is known"
                )
                assert await load_status(gateway, "/geography/countries/US") == 200
                refused_response = await gateway.request("GET", f"/v1/recipients/{recipient}")
                assert (refused_response.status, refused_response.body["errors"][0]["code"]) == (
                    500,
                    "internal_server_error",
                )
                unknown_key_response = await gateway.request(
                    "GET", "/v1/recipients", headers=other_headers
                )
                assert unknown_key_response.status == 500, "nobody can say whether the key exists"
                async with gateway.session.get(f"{gateway.running.admin_url}/readyz") as response:
                    assert response.status == 503
                    assert "state" in (await response.json())["faults"]
                outage_metrics = await fetch_metrics(gateway.session, gateway.running.admin_url)
                assert outage_metrics.sum("payout_gateway_database_up") == 0
                assert outage_metrics.get_value("payout_gateway_api_keys") == []
                assert math.isnan(outage_metrics.sum("payout_gateway_in_doubt_writes"))
                await asyncio.sleep(1)  # several renewals
                assert "".join(capfd.readouterr()).count('"lease_renewal"') <= 1
                tcp_proxy.restore()
                assert await load_status(gateway, f"/recipients/{recipient}") == 200
                assert await load_status(gateway, "/recipients") == 200
                unknown_key_response = await gateway.request(
                    "GET", "/v1/recipients", headers=other_headers
                )
                assert unknown_key_response.status == 403
                await wait_until_async(partial(is_ready, gateway))
                metrics = await fetch_metrics(gateway.session, gateway.running.admin_url)
                assert metrics.sum("payout_gateway_database_up") == 1
                assert metrics.sum("payout_gateway_database_errors_total") > 0
            await create_recipient(gateway, "eve")
            assert (
                len(simulator.service.list_requests("POST", "/v1/recipients")) == creation_count + 1
            )


async def test_no_write_is_sent_during_database_outage_and_sent_writes_are_not_repeated(
    tmp_path: Path, database: str
) -> None:
    database_url, service = make_url(database), Service(seed=1)
    async with open_tcp_proxy(
        database_url.host or "127.0.0.1", database_url.port or 5432
    ) as tcp_proxy:
        state = build_state_section(tcp_proxy, database, tmp_path)
        async with open_gateway_and_service(tmp_path, service, state=state) as (
            gateway,
            _simulator,
        ):
            service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
            pending_response = asyncio.ensure_future(
                gateway.request("POST", "/v1/recipients", build_person("one"))
            )
            await wait_until(lambda: service.creation_counts["recipient"] == 1)
            tcp_proxy.disconnect()
            lost_response = await pending_response
            assert "unknown" in lost_response.body["errors"][0]["message"], lost_response.text
            refused_response = await gateway.request("POST", "/v1/recipients", build_person("two"))
            for response in (lost_response, refused_response):
                code = response.body["errors"][0]["code"]
                assert (response.status, code) == (500, "internal_server_error")
            assert service.creation_counts["recipient"] == 1
            tcp_proxy.restore()
            for name in ("one", "two"):
                retry_response = await gateway.request("POST", "/v1/recipients", build_person(name))
                assert retry_response.status == 200, retry_response.text
            assert service.creation_counts["recipient"] == 2


async def test_writes_work_after_database_was_read_only(tmp_path: Path, database: str) -> None:
    name = make_url(database).database
    setting = f"ALTER DATABASE {name} SET default_transaction_read_only"
    disconnect = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        f" WHERE datname = '{name}'"
    )
    create_key_file(tmp_path / "gateway.key")
    async with open_gateway_and_service(tmp_path, Service(seed=1), state={"url": database}) as (
        gateway,
        _simulator,
    ):
        for statement in (f"{setting} = on", disconnect):
            await asyncio.to_thread(run_statements, POSTGRES_URL, statement)
        for number in range(3):
            response = await gateway.request("POST", "/v1/recipients", build_person(f"no{number}"))
            assert response.status == 500
        await asyncio.to_thread(run_statements, POSTGRES_URL, f"{setting} = off")
        await wait_until_async(partial(is_ready, gateway))
        await create_recipient(gateway)
