"""A concurrent edit by a translated key and start by a forwarded key of one batch.

Both are the first to touch the batch. The first one decides at which service the batch is; the
other one follows it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.writes.batch_routing import BatchRouting
from mappings.effects import CompareAndSet
from tests.legacy_and_current import GatewayBetween, open_gateway_between
from tests.operator_commands import read_log
from tests.running_gateway import KEY, GatewayResponse
from tests.simulator import Fault, ServiceCredentials
from tests.test_cutover import populate_legacy_service, run_import

FORWARDED_KEY_HEADERS = {"X-API-Key": KEY["api_key"]}
"""The merchant's other key, which is not forwarded."""


@dataclass
class ImportedBatch:
    """An imported batch without later requests; one key is forwarded, the other translated."""

    setup: GatewayBetween
    path: str
    payment_id: str
    """One of its payments."""

    async def edit_payment(self) -> GatewayResponse:
        path = f"{self.path}/payments/{self.payment_id}"
        return await self.setup.gateway.request(
            "PATCH", path, {"sourceAmount": "99.00"}, headers=FORWARDED_KEY_HEADERS
        )

    async def start_batch(self) -> GatewayResponse:
        return await self.setup.gateway.request("POST", f"{self.path}/start-processing")

    async def load_amount(self) -> str:
        payments = (await self.setup.request_legacy("GET", f"{self.path}/payments")).body[
            "payments"
        ]
        return next(
            payment["sourceAmount"] for payment in payments if payment["id"] == self.payment_id
        )

    def count_legacy_starts(self) -> int:
        """Counts start requests at the legacy service."""
        return self.setup.count_legacy_calls("POST", f"{self.path}/start-processing")

    def list_current_writes(self) -> list[Any]:
        """Lists writes at the current interface."""
        calls = self.setup.current.list_requests("*", "*", interface="current")
        return [call for call in calls if call.method != "GET"]


@asynccontextmanager
async def open_imported_batch(folder: Path) -> AsyncIterator[ImportedBatch]:
    async with open_gateway_between(folder, has_two_services=False) as setup:
        other_credentials = ServiceCredentials(
            "SECONDACCESSKEY", "second-secret-key", api_key=KEY["api_key"]
        )
        setup.legacy.credentials[other_credentials.access_key] = other_credentials
        populated = await populate_legacy_service(setup)
        await run_import(setup)
        await setup.set_mode("forward", "batches")
        path = f"/v1/batches/{populated['open']}"
        payments = (await setup.request_legacy("GET", f"{path}/payments")).body["payments"]
        yield ImportedBatch(setup, path, payments[0]["id"])


async def test_edit_follows_concurrent_start_to_the_legacy_service(tmp_path: Path) -> None:
    async with open_imported_batch(tmp_path) as street:
        street.setup.current.faults.append(Fault("GET", "*", answer_delay=0.5))
        edit = asyncio.ensure_future(street.edit_payment())
        await asyncio.sleep(0.2)
        start_response, edit_response = await street.start_batch(), await edit
        assert (start_response.status, street.count_legacy_starts()) == (200, 1)
        assert (edit_response.status, edit_response.body["errors"][0]["code"]) == (
            406,
            "invalid_status",
        )
        assert street.setup.count_legacy_calls("PATCH", f"{street.path}/*/*") == 1
        assert (street.list_current_writes(), await street.load_amount()) == ([], "10.00")
        line = next(
            entry for entry in read_log(tmp_path).splitlines() if "=update_payment" in entry
        )
        assert "forward" in line


async def test_start_follows_concurrent_edit_to_the_current_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_imported_batch(tmp_path) as street:
        build_legacy_routing_marks, is_decided = (
            BatchRouting.build_legacy_routing_marks,
            asyncio.Event(),
        )

        async def load_marks_late(self: BatchRouting, *arguments: Any) -> list[CompareAndSet]:
            routing_marks = await build_legacy_routing_marks(self, *arguments)
            await is_decided.wait()
            return routing_marks

        monkeypatch.setattr(BatchRouting, "build_legacy_routing_marks", load_marks_late)
        start_task = asyncio.ensure_future(street.start_batch())
        await asyncio.sleep(0.2)
        edit_response = await street.edit_payment()
        is_decided.set()
        start_response = await start_task
        assert (edit_response.status, start_response.status) == (200, 200)
        assert (street.count_legacy_starts(), len(street.list_current_writes())) == (0, 2)
        assert await street.load_amount() == "99.00"


async def test_concurrent_requests_never_succeed_at_both_services(tmp_path: Path) -> None:
    async with open_imported_batch(tmp_path) as street:
        street.setup.current.faults.append(Fault("GET", "*", answer_delay=0.02, times=20))
        earlier_starts = len(street.setup.current.batch_starts)
        requests = [
            entry() for _ in range(5) for entry in (street.start_batch, street.edit_payment)
        ]
        response = await asyncio.gather(*requests)
        start_response = [result.status for result in response[::2]]
        edit_response = [result.status for result in response[1::2]]
        assert 200 in start_response
        # A start that comes after the first was delivered is sent too, and refused by the service.
        assert len(street.setup.current.batch_starts) == earlier_starts + 1
        begun_there = street.count_legacy_starts() > 0
        assert begun_there is not bool(street.list_current_writes())
        expected = "99.00" if 200 in edit_response else "10.00"
        assert await street.load_amount() == expected
        assert set(start_response + edit_response) <= {200, 406, 500}
