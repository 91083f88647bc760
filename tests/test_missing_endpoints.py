"""Endpoints that the service may lack: when one counts as missing, and for how long."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.operator_commands import (
    OperatedGateway,
    open_operated_gateway,
    read_log,
    wait_until_async,
)
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service

HTML = b"<html><title>404 Not Found</title><h1>Not Found</h1></html>"
UNLIMITED = 1_000_000


def build_page_fault(path: str = "*", status: int = 404, times: int = UNLIMITED) -> Fault:
    """Builds a fault that answers with an HTML page, as a proxy does."""
    return Fault("*", path, status, HTML, {"Content-Type": "text/html"}, times=times)


async def load_listed_ids(gateway: GatewayUnderTest) -> set[str]:
    return {
        batch["id"] for batch in (await request_successfully(gateway, "GET", "/batches"))["batches"]
    }


async def is_refused(gateway: GatewayUnderTest) -> bool:
    """Whether the list is a 500, instead of being incomplete or a 404."""
    response = await gateway.request("GET", "/v1/batches")
    if response.status != 500:
        return False
    assert response.body["errors"][0]["code"] == "internal_server_error"
    return True


async def find_doctor_finding(setup: OperatedGateway, state: str) -> dict[str, Any]:
    """Returns the finding of `doctor` on the list of batches."""
    report = await setup.run_json_command("doctor")
    entry = next(
        finding for finding in report["findings"] if finding["looked_at"] == "GET /batches"
    )
    assert entry["state"] == state, entry
    return dict(entry)


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("is_known", [True, False], ids=["listed before", "never listed"])
async def test_error_page_of_a_proxy_does_not_shorten_the_list(
    *, is_known: bool, status: int, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with open_operated_gateway(tmp_path) as setup, AsyncExitStack() as stack:
        recipient = await create_recipient(setup.gateway)
        batch_ids = {await create_batch(setup.gateway, recipient, "5.00") for _ in range(2)}
        url = setup.gateway.settings.environments.map_configured_environments_by_name()[
            "sandbox"
        ].base_url
        other_gateway = await stack.enter_async_context(open_gateway(tmp_path / "other", url))
        if is_known:
            assert len(await load_listed_ids(other_gateway)) == 2
        setup.service.faults.append(build_page_fault(status=status))
        assert await is_refused(other_gateway)
        assert await is_refused(setup.gateway)
        setup.service.faults.clear()
        assert len(await load_listed_ids(other_gateway)) == 2
        assert await load_listed_ids(setup.gateway) == batch_ids


async def test_transient_error_page_does_not_mark_the_endpoint_missing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with open_operated_gateway(tmp_path) as setup:
        await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        url = setup.gateway.settings.environments.map_configured_environments_by_name()[
            "sandbox"
        ].base_url
        async with open_gateway(tmp_path / "other", url) as other_gateway:
            setup.service.faults += [
                build_page_fault("/v1/batches", times=2),
                build_page_fault("/v1/recipients", times=1),
            ]
            assert await is_refused(other_gateway), "the read right after the first is a page too"
            assert len(await load_listed_ids(other_gateway)) == 1, (
                "one refusal, and the second try is answered"
            )


async def test_list_that_disappears_is_an_error_until_doctor_confirms(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        gateway = setup.gateway
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        assert await load_listed_ids(gateway) == {batch}
        setup.service.faults.append(build_page_fault("/v1/batches"))
        for _ in range(2):
            assert await is_refused(gateway)
        assert "run `payout-gateway doctor`" in read_log(tmp_path)
        finding = await find_doctor_finding(setup, "warning")
        assert "the service does not have it: it refused it just now" in finding["said"]
        assert "doctor" in finding["do"]

        async def is_listed() -> bool:
            return not await is_refused(gateway)

        await wait_until_async(is_listed)
        calls = setup.count_calls("GET", "/v1/batches")
        assert await load_listed_ids(gateway) == {batch}
        assert setup.count_calls("GET", "/v1/batches") == calls, "it is not tried meanwhile"
        setup.service.faults.clear()
        assert (await find_doctor_finding(setup, "ok"))[
            "said"
        ] == "the service has it: it answered just now"

        async def is_tried() -> bool:
            calls = setup.count_calls("GET", "/v1/batches")
            await load_listed_ids(gateway)
            return setup.count_calls("GET", "/v1/batches") > calls

        await wait_until_async(is_tried)


async def test_doctor_corrects_a_running_gateway(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with open_operated_gateway(tmp_path) as setup:
        url = setup.gateway.settings.environments.map_configured_environments_by_name()[
            "sandbox"
        ].base_url
        async with open_gateway(tmp_path / "other", url) as other_gateway:
            await create_batch(other_gateway, await create_recipient(other_gateway), "5.00")
        setup.service.faults.append(build_page_fault("/v1/batches"))
        assert await load_listed_ids(setup.gateway) == set()
        assert "the service does not have it" in (await find_doctor_finding(setup, "ok"))["said"]
        setup.service.faults.clear()
        assert await load_listed_ids(setup.gateway) == set(), "it is remembered"
        await find_doctor_finding(setup, "ok")

        async def is_whole() -> bool:
            return len(await load_listed_ids(setup.gateway)) == 1

        await wait_until_async(is_whole)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_edit_answered_by_an_error_page_is_in_doubt(status: int, tmp_path: Path) -> None:
    """Unless the path is known to be missing, which takes a read right after it."""
    async with open_operated_gateway(tmp_path) as setup:
        gateway = setup.gateway
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00", "6.00")
        first_id, second_id = await load_payment_ids(gateway, batch)
        setup.service.faults += [
            build_page_fault("/v1/batches/*/payments/*", status, times=2),
            Fault("GET", "/v1/batch/*/summary"),
            Fault("GET", "/v1/batch/*/summary"),
            build_page_fault("/v1/batch/*/summary", times=1),
        ]
        response = await gateway.request("DELETE", f"/v1/batches/{batch}/payments/{first_id}")
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        assert await load_payment_ids(gateway, batch) == [first_id, second_id]
        write = await setup.find_write_in_doubt()
        assert write["operation"] == "delete_payment"


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_executed_edit_answered_by_an_error_page_is_answered_as_executed(
    status: int, tmp_path: Path
) -> None:
    """The page may be that of a proxy; a read shows that the service executed it."""
    service = Service(seed=1)
    page = {"status": status, "body": b"<html>", "executes": True}
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "6.00")
        first_id, second_id = await load_payment_ids(gateway, batch)
        service.faults.append(Fault("DELETE", "/v1/batches/*/payments/*", **page))
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{first_id}")
        assert await load_payment_ids(gateway, batch) == [second_id]
        service.faults.append(Fault("PATCH", "/v1/batches/*", **page))
        payment = {"recipient": {"id": recipient}, "sourceAmount": "100.00"}
        await request_successfully(gateway, "PATCH", f"/batches/{batch}", {"payments": [payment]})
        assert len(await load_payment_ids(gateway, batch)) == 2
        service.faults.append(Fault("DELETE", "/v1/batches/*", **page))
        await request_successfully(gateway, "DELETE", f"/batches/{batch}")


@pytest.mark.parametrize("lists_batches", [True, False], ids=["says so", "a page"])
async def test_batch_deleted_at_the_service_is_not_listed(
    *, lists_batches: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        remaining, deleted = [
            await create_batch(setup.gateway, recipient, "5.00") for _ in range(2)
        ]
        tenant = setup.service.find_or_create_tenant()
        del tenant.batches[[*tenant.batches][-1]]
        if not lists_batches:
            setup.service.faults.append(build_page_fault("/v1/batch/*/summary", times=1))
        assert await load_listed_ids(setup.gateway) == (
            {remaining} if lists_batches else {remaining, deleted}
        )
        assert await load_listed_ids(setup.gateway) == {remaining}
