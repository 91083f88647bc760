"""A recipient whose payout could not be set up in the same request: completed, or deleted again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.storage.tables import operations
from gateway.upstream.client import UpstreamClient
from gateway.upstream.http_connection import Reply
from gateway.writes.states import IN_DOUBT
from mappings.failures import Unreachable
from tests.operator_commands import (
    AdjustableClock,
    OperatedGateway,
    open_operated_gateway,
    wait_until_async,
)
from tests.recording_service import ReceivedRequest, RecordingService, Stage, open_recording_service
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Recipient, Service
from tests.state import fetch, load_in_doubt_writes

ACCOUNTS = "/v1/recipients/*/accounts"
BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "payout": {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": "ada@example.com"}},
    },
}


@dataclass
class Setup:
    gateway: GatewayUnderTest
    recorder: RecordingService
    clock: AdjustableClock

    async def create(self, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return await self.gateway.request("POST", "/v1/recipients", BODY, headers=headers)

    def list_recipients(self) -> list[Recipient]:
        """The recipients that the service has and can pay."""
        recipients = self.recorder.service.find_or_create_tenant().recipients.values()
        return [recipient for recipient in recipients if not recipient.is_archived]

    async def list_recipients_of_clients(self) -> list[str]:
        response = await self.gateway.request("GET", "/v1/recipients")
        return [recipient["id"] for recipient in response.body["recipients"]]


@asynccontextmanager
async def open_setup(folder: Path) -> AsyncIterator[Setup]:
    clock = AdjustableClock()
    async with (
        open_recording_service(Service(seed=1)) as recorder,
        open_gateway(
            folder,
            recorder.url,
            clock,
            upstream={"timeout_seconds": 2, "breaker_failures": 2, "breaker_seconds": 0.2},
        ) as gateway,
    ):
        yield Setup(gateway, recorder, clock)


@pytest.mark.parametrize("is_answered", [False, True])
async def test_recipient_is_completed_if_the_service_goes_down(
    is_answered: bool, tmp_path: Path
) -> None:
    """The first attempt was undone in vain, and each retry created another recipient."""
    async with open_setup(tmp_path) as setup:
        outages: list[asyncio.Task[None]] = []

        def go_down(request: ReceivedRequest, stage: Stage) -> None:
            if (request.method, request.path, stage) == ("POST", "/v1/recipients", "answered"):
                outages.append(asyncio.create_task(setup.recorder.close()))

        if is_answered:  # it goes down only after it has answered the account with 503
            setup.recorder.add_fault("503 json", "POST", ACCOUNTS, executes=False, times=1)
        else:
            setup.recorder.watchers.append(go_down)
        response = await setup.create()
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        await asyncio.gather(*outages, setup.recorder.close())
        setup.clock.ahead_seconds += 60
        for _ in range(4):  # the breaker opens
            assert (await setup.create()).status == 500
        setup.clock.ahead_seconds += 60
        setup.recorder.watchers.clear()
        await setup.recorder.open()

        async def is_completed() -> bool:
            setup.clock.ahead_seconds += 30
            return not await load_in_doubt_writes(setup.gateway.settings) and any(
                recipient.accounts for recipient in setup.list_recipients()
            )

        await wait_until_async(is_completed, 40)
        retry_response = await setup.create()
        assert retry_response.status == 200, retry_response.text
        assert retry_response.headers["Idempotent-Replayed"] == "true"
        (recipient,) = setup.list_recipients()
        assert [retry_response.body["recipient"]["id"]] == await setup.list_recipients_of_clients()
        assert len(recipient.accounts) == 1


@pytest.mark.parametrize(
    ("undo_fault", "key"), [("503 empty", None), ("429", "one"), ("hang before", None)]
)
async def test_undo_of_a_refused_create_is_repeated_until_confirmed(
    undo_fault: str, key: str | None, tmp_path: Path
) -> None:
    async with open_setup(tmp_path) as setup:
        setup.recorder.add_fault("404" if key else "429", "POST", ACCOUNTS)
        setup.recorder.add_fault(
            undo_fault, "DELETE", "/v1/recipients/*", executes=False, times=1000
        )
        refused_response = await setup.create(key)
        assert refused_response.status == (500 if key else 429)
        (left_over,) = setup.list_recipients()
        assert await setup.list_recipients_of_clients() == []
        # The client has its answer, so that the same request is a new one.
        response = await setup.create(key)
        assert response.status == 200, response.text
        assert "Idempotent-Replayed" not in response.headers
        assert len(await setup.list_recipients_of_clients()) == 1
        assert left_over in setup.list_recipients()
        setup.recorder.faults.clear()

        async def is_undone() -> bool:
            setup.clock.ahead_seconds += 30
            return left_over not in setup.list_recipients()

        await wait_until_async(is_undone, 40)
        assert len(await setup.list_recipients_of_clients()) == 1
        await wait_until_async(lambda: _is_nothing_in_doubt(setup), 20)


@pytest.mark.parametrize("undo_fault", ["503 empty", "429", "hang before"])
async def test_refused_payout_method_does_not_stay_primary(undo_fault: str, tmp_path: Path) -> None:
    async with open_setup(tmp_path) as setup:
        recipient = (await setup.create()).body["recipient"]["id"]
        setup.recorder.add_fault("429", "POST", ACCOUNTS, text="other@example.com")
        for method in ("PATCH", "DELETE"):
            setup.recorder.add_fault(
                undo_fault, method, f"{ACCOUNTS}/*", executes=False, times=1000
            )
        bank = {"country": "US", "accountNum": "1234567", "routing": "021000021"}
        payout = {
            "primary": {"method": "bank", "currency": "USD"},
            "accounts": {"bank": bank, "wallet": {"address": "other@example.com"}},
        }
        path = f"/v1/recipients/{recipient}/payout-methods"
        assert (await setup.gateway.request("POST", path, payout)).status == 429
        (paid,) = setup.list_recipients()

        def list_primary_types() -> list[str]:
            return [account.type for account in paid.accounts if account.is_primary]

        assert list_primary_types() == ["bank-transfer"]
        setup.recorder.faults.clear()

        async def is_undone() -> bool:
            setup.clock.ahead_seconds += 30
            return list_primary_types() == ["wallet"]

        await wait_until_async(is_undone, 40)
        await wait_until_async(lambda: _is_nothing_in_doubt(setup), 20)
        assert (await setup.gateway.request("POST", path, payout)).status == 200
        assert list_primary_types() == ["bank-transfer"]


@pytest.mark.parametrize("types", [["wallet"], []])
@pytest.mark.parametrize("undo_fault", ["503 empty", "429", "hang before"])
async def test_refused_payout_method_is_deleted_until_confirmed(
    undo_fault: str, types: list[str], tmp_path: Path
) -> None:
    async with open_setup(tmp_path) as setup:
        response = await setup.gateway.request(
            "POST", "/v1/recipients", BODY if types else {**BODY, "payout": None}
        )
        path = f"/v1/recipients/{response.body['recipient']['id']}/payout-methods"
        setup.recorder.add_fault("429", "POST", ACCOUNTS, text="other@example.com")
        setup.recorder.add_fault(undo_fault, "DELETE", f"{ACCOUNTS}/*", executes=False, times=1000)
        bank = {"country": "US", "accountNum": "1234567", "routing": "021000021"}
        payout = {
            "primary": {"method": "bank", "currency": "USD"},
            "accounts": {"bank": bank, "wallet": {"address": "other@example.com"}},
        }
        assert (await setup.gateway.request("POST", path, payout)).status == 429
        setup.recorder.faults.clear()
        (recipient,) = setup.list_recipients()

        async def is_undone() -> bool:
            setup.clock.ahead_seconds += 30
            return [account.type for account in recipient.accounts] == types

        await wait_until_async(is_undone, 40)
        await wait_until_async(lambda: _is_nothing_in_doubt(setup), 20)


async def test_refused_change_of_one_payout_method_leaves_the_primary_one(tmp_path: Path) -> None:
    async with open_setup(tmp_path) as setup:
        recipient = (await setup.create()).body["recipient"]["id"]
        path = f"/v1/recipients/{recipient}/payout-methods"
        payout = {
            "primary": {"method": "bank", "currency": "USD"},
            "accounts": {
                "bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}
            },
        }
        assert (await setup.gateway.request("POST", path, payout)).status == 200
        setup.recorder.add_fault("429", "PATCH", f"{ACCOUNTS}/*", text="other@example.com")
        accounts = {"bank": {"accountNum": "7654321"}, "wallet": {"address": "other@example.com"}}
        response = await setup.gateway.request("PATCH", path, {"accounts": accounts})
        assert response.status == 429
        (paid,) = setup.list_recipients()
        (bank,) = (account for account in paid.accounts if account.is_primary)
        assert bank.fields["accountNum"] == "1234567"


@pytest.mark.parametrize("refused", ["POST", "PATCH"])
async def test_refused_change_of_one_of_two_payout_methods_changes_nothing(
    refused: str, tmp_path: Path
) -> None:
    """The wallet that is paid gets another address, and the request adds a bank account."""
    async with open_operated_gateway(tmp_path) as setup:
        response = await setup.gateway.request("POST", "/v1/recipients", BODY)
        path = f"/v1/recipients/{response.body['recipient']['id']}/payout-methods"
        before = (await setup.gateway.request("GET", path)).body
        body = {
            "primary": {"method": "wallet", "currency": "USD"},
            "accounts": {
                "wallet": {"address": "eve@example.com"},
                "bank": {"country": "DE", "currency": "EUR", "iban": "DE89370400440532013000"},
            },
        }
        problem = {"ok": False, "errors": [{"code": "invalid_field", "message": "x"}]}
        fault_path = ACCOUNTS if refused == "POST" else f"{ACCOUNTS}/*"
        setup.add_fault(refused, fault_path, status=400, body=json.dumps(problem).encode())
        assert (await setup.gateway.request("PATCH", path, body)).status == 406
        assert (await setup.gateway.request("GET", path)).body == before
        assert (await setup.gateway.request("PATCH", path, body)).status == 200
        after = (await setup.gateway.request("GET", path)).body
        assert after["accounts"]["wallet"]["address"] == "eve@example.com"
        assert (after["method"], {*after["accounts"]}) == ("wallet", {"bank", "wallet"})


async def test_create_whose_answers_cannot_be_understood_is_listed(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        for method in ("PATCH", "GET"):
            answer = b'{"ok":true,"recipient":5}'
            setup.add_fault(method, "/v1/recipients/*", status=200, body=answer, times=1000)
        response = await setup.gateway.request("POST", "/v1/recipients", {**BODY, "language": "fr"})
        assert response.status == 500

        async def is_listed() -> bool:
            return bool(await setup.list_writes_in_doubt())

        await wait_until_async(is_listed, 40)


async def test_rest_of_a_bulk_deletion_is_left_to_the_retry(tmp_path: Path) -> None:
    async with open_setup(tmp_path) as setup:
        body = {"sourceCurrency": "USD", "payments": []}
        ids = []
        for description in ("one", "two"):
            response = await setup.gateway.request(
                "POST", "/v1/batches", {**body, "description": description}
            )
            ids.append(response.body["batch"]["id"])
        path = "/v1/batches/*"
        setup.recorder.add_fault("503 json", "DELETE", path, executes=False, skip_count=1)
        assert (await setup.gateway.request("DELETE", "/v1/batches", {"ids": ids})).status == 500
        setup.clock.ahead_seconds += 60
        await wait_until_async(lambda: _is_nothing_in_doubt(setup), 40)
        assert len(setup.recorder.list_writes("DELETE", path)) == 2
        assert (await setup.gateway.request("DELETE", "/v1/batches", {"ids": ids})).status == 200
        assert len(setup.recorder.list_writes("DELETE", path)) == 3


async def test_bulk_deletion_that_ends_half_way_does_not_say_that_nothing_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_setup(tmp_path) as setup:
        body: Any = {"sourceCurrency": "USD", "payments": []}
        responses = [
            await setup.gateway.request("POST", "/v1/batches", {**body, "description": each})
            for each in ("one", "two")
        ]
        request = "DELETE", "/v1/batches", {"ids": [each.body["batch"]["id"] for each in responses]}
        send = UpstreamClient.send

        async def lose_connection(client: UpstreamClient, *arguments: Any, **options: Any) -> Reply:
            if "DELETE" in arguments and setup.recorder.list_writes("DELETE"):
                raise Unreachable
            return await send(client, *arguments, **options)

        with monkeypatch.context() as context:
            context.setattr(UpstreamClient, "send", lose_connection)
            response = await setup.gateway.request(*request)
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        assert response.body["errors"][0]["message"].startswith("Some of the batches were deleted")
        assert (await setup.gateway.request(*request)).status == 200
        assert len(setup.recorder.list_writes("DELETE")) == 2


async def _is_nothing_in_doubt(setup: Setup | OperatedGateway) -> bool:
    return not await load_in_doubt_writes(setup.gateway.settings)


async def test_refusal_is_replayed_to_its_key_before_and_after_the_undo(tmp_path: Path) -> None:
    refusal = b'{"ok":false,"errors":[{"code":"invalid_field","message":"No","field":"type"}]}'
    async with open_operated_gateway(tmp_path) as setup:
        setup.add_fault("POST", ACCOUNTS, status=406, body=refusal)
        setup.add_fault("DELETE", "/v1/recipients/*", status=503, times=1000)
        create = partial(
            setup.gateway.request, "POST", "/v1/recipients", headers={"Idempotency-Key": "one"}
        )
        assert (await create(BODY)).status == 406
        replayed_response = await create(BODY)
        assert replayed_response.status == 406
        assert replayed_response.headers["Idempotent-Replayed"] == "true"
        write = await setup.find_write_in_doubt()
        assert write["method"] == "DELETE"
        setup.service.faults.clear()
        await setup.age_sent_writes()
        await wait_until_async(lambda: _is_nothing_in_doubt(setup), 40)
        assert setup.count_calls("DELETE", "/v1/recipients/*") >= 1
        assert (await create(BODY)).status == 406
        assert setup.service.creation_counts["recipient"] == 1


async def test_undo_that_the_service_refuses_is_left_to_an_operator(tmp_path: Path) -> None:
    refusal = b'{"ok":false,"errors":[{"code":"invalid_status","message":"No"}]}'
    async with open_operated_gateway(tmp_path) as setup:
        setup.add_fault("POST", ACCOUNTS, status=400, body=refusal)
        setup.add_fault("DELETE", "/v1/recipients/*", status=400, body=refusal, times=1000)
        assert (await setup.gateway.request("POST", "/v1/recipients", BODY)).status == 406
        await setup.age_sent_writes()
        async with setup.open_store() as store:

            async def is_tried_again() -> bool:
                (row,) = await fetch(store, select(operations))
                return bool(row.fence > 1 and row.state == IN_DOUBT)

            await wait_until_async(is_tried_again, 40)
        assert setup.count_calls("DELETE", "/v1/recipients/*") == 1
        write = await setup.find_write_in_doubt()
        assert write["why"].endswith("the service refuses to undo it (status 400)")
        assert f"writes close {write['write']}" in write["what_to_do"]
        await setup.run_command("writes", "close", write["write"], "--yes")
        assert await _is_nothing_in_doubt(setup)
        response = await setup.gateway.request("GET", "/v1/recipients")
        assert response.body["recipients"] == []
