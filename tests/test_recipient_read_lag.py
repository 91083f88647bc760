"""Changes of a recipient that the service shows a little later than it confirms them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import aiohttp
import pytest

from gateway.server.app import run_gateway
from gateway.upstream.clock import ServiceClock
from mappings.recipient_reads import is_shown_late
from tests.payouts import create_recipient, open_gateway_and_service, request_successfully
from tests.running_gateway import GatewayUnderTest, build_settings
from tests.signed_requests import SigningClient, send_raw, send_signed
from tests.simulator import Fault, Service, start_simulator
from tests.state import KEY, import_api_keys


@pytest.mark.parametrize("time_shown", [None, "yesterday", "2026-03-01T10:00:00"])
def test_recipient_without_a_time_that_can_be_compared_may_be_shown_late(time_shown: Any) -> None:
    flow = is_shown_late({"id": "R-1", "updatedAt": time_shown})
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send({"/recipients/R-1": ("", "2026-03-01T10:00:00+00:00")})
    assert end.value.value is True


@pytest.mark.parametrize("is_late", [False, True])
def test_an_account_that_another_one_replaced_as_primary_is_not_missed(is_late: bool) -> None:
    # The service gave A-2 the id A-4 when A-3 became the primary account.
    shown_ids = ["A-1"] if is_late else ["A-4", "A-3"]
    accounts = [{"recipientAccountId": id_} for id_ in shown_ids]
    flow = is_shown_late({"id": "R-1", "accounts": accounts})
    next(flow)
    times = [f"2026-03-01T10:00:0{second}+00:00" for second in range(2)]
    changes = zip(("A-2", "A-3"), times, times, strict=True)
    paths = "/recipients/R-1/accounts/A-1", "/recipients/R-1/accounts"
    with pytest.raises(StopIteration) as end:
        flow.send(dict(zip(paths, changes, strict=True)))
    assert end.value.value is is_late


async def show_as_now(gateway: GatewayUnderTest, service: Service) -> None:
    """Lets the service show its only recipient as it is now until its faults are cleared."""
    (recipient,) = service.find_or_create_tenant().recipients
    path = f"/v1/recipients/{recipient}"
    request = SigningClient().build_request(target=path, stamp=int(time()))
    body = (await send_raw(gateway, request)).body
    assert json.loads(body)["recipient"]["id"] == recipient
    service.faults.append(Fault("GET", path, status=200, body=body, times=100))


def get_primary_account(service: Service) -> dict[str, Any]:
    (recipient,) = service.find_or_create_tenant().recipients.values()
    (account,) = (account for account in recipient.accounts if account.is_primary)
    return {"type": account.type, **account.fields}


def build_wallet(address: str) -> dict[str, Any]:
    return {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": address}}}


BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {
        "bank": {"country": "US", "accountNum": "1234567890", "routing": "021000021", "name": "Ada"}
    },
}
FIRST_WALLET = build_wallet("ada@wallet.example.com")


@pytest.mark.parametrize("is_in_recipient", [False, True], ids=["payout", "recipient"])
@pytest.mark.parametrize(
    "change", [build_wallet("eve@wallet.example.com"), BANK], ids=["address", "method"]
)
async def test_payout_is_set_back_although_the_change_is_not_shown_yet(
    change: dict[str, Any], is_in_recipient: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        before = get_primary_account(service)
        await show_as_now(gateway, service)
        path = f"/recipients/{recipient}" + ("" if is_in_recipient else "/payout-methods")

        def build_body(payout: dict[str, Any]) -> dict[str, Any]:
            return {"payout": payout} if is_in_recipient else payout

        await request_successfully(gateway, "PATCH", path, build_body(change))
        assert get_primary_account(service) != before
        response = await gateway.request("PATCH", f"/v1{path}", build_body(FIRST_WALLET))
        if response.status != 200:
            assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
            service.faults.clear()
            await request_successfully(gateway, "PATCH", path, build_body(FIRST_WALLET))
        assert get_primary_account(service) == before


@pytest.mark.parametrize("is_in_recipient", [False, True], ids=["payout", "recipient"])
async def test_payout_is_set_back_although_a_signed_change_is_not_shown_yet(
    is_in_recipient: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        await show_as_now(gateway, service)
        ((id_, stored),) = service.find_or_create_tenant().recipients.items()
        before, signed_path = get_primary_account(service), f"/recipients/{id_}/accounts"
        signed_path += f"/{stored.accounts[0].id}"
        body = b'{"emailAddress":"eve@wallet.example.com"}'
        assert (await send_signed(gateway, "PATCH", signed_path, body)).status == 200
        assert get_primary_account(service) != before
        path = f"/v1/recipients/{recipient}" + ("" if is_in_recipient else "/payout-methods")
        request = ("PATCH", path, {"payout": FIRST_WALLET} if is_in_recipient else FIRST_WALLET)
        response = await gateway.request(*request)
        # The service shows the account by its earlier id only.
        assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        service.faults.clear()
        assert (await gateway.request(*request)).status == 200
        assert get_primary_account(service) == before


@pytest.mark.parametrize("is_other_executed", [False, True])
async def test_a_refused_signed_change_is_not_waited_for(
    is_other_executed: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        await show_as_now(gateway, service)
        (id_,) = service.find_or_create_tenant().recipients
        for body in [b'{"firstName":"Eve"}'] * is_other_executed + [b'{"status":"asleep"}']:
            response = await send_signed(gateway, "PATCH", f"/recipients/{id_}", body)
        assert response.status == 400
        expected = 500 if is_other_executed else 406
        refusal = await gateway.request("PATCH", f"/v1{path}", {"ssn": "****11"})
        assert refusal.status == expected, refusal.text


@pytest.mark.parametrize("is_whole_object", [False, True])
async def test_recipient_is_set_back_although_the_change_is_not_shown_yet(
    is_whole_object: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        (stored,) = service.find_or_create_tenant().recipients.values()
        path = f"/recipients/{recipient}"
        shown = (await request_successfully(gateway, "GET", path))["recipient"]
        await show_as_now(gateway, service)
        await request_successfully(
            gateway, "PATCH", path, {"status": "suspended", "firstName": "Eve"}
        )
        assert (stored.status, stored.fields["firstName"]) == ("suspended", "Eve")
        fields = {"status": shown["status"], "firstName": shown["firstName"]}
        body = shown if is_whole_object else fields
        await request_successfully(gateway, "PATCH", path, body)
        assert (stored.status, stored.fields["firstName"]) == ("active", "Ada")


async def test_account_of_a_new_recipient_may_be_shown_late(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}/payout-methods"
        await show_as_now(gateway, service)
        (fault,) = service.faults
        shown = json.loads(fault.body)["recipient"]
        fault.body = json.dumps({"ok": True, "recipient": {**shown, "accounts": []}}).encode()
        change = {"primary": {"method": "wallet"}}
        response = await gateway.request("PATCH", f"/v1{path}", change)
        assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        service.faults.clear()
        await request_successfully(gateway, "PATCH", path, change)


@pytest.mark.parametrize("is_in_recipient", [False, True], ids=["payout", "recipient"])
@pytest.mark.parametrize("is_replacement", [False, True])
async def test_a_change_of_an_account_that_is_not_shown_yet_creates_no_other(
    is_replacement: bool, is_in_recipient: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        if is_replacement:
            bank = {"country": "MX", "accountNum": "012345678901234567"}
            payout = {"primary": BANK["primary"], "accounts": {"bank": bank}}
            await request_successfully(gateway, "POST", f"{path}/payout-methods", payout)
        await show_as_now(gateway, service)
        await request_successfully(gateway, "POST", f"{path}/payout-methods", BANK)
        bank = {"country": "US", "accountNum": "9876543210", "routing": "021000021"}
        change = {"primary": BANK["primary"], "accounts": {"bank": bank}}
        suffix, body = ("", {"payout": change}) if is_in_recipient else ("/payout-methods", change)
        response = await gateway.request("PATCH", f"/v1{path}{suffix}", body)
        assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        service.faults.clear()
        await request_successfully(gateway, "PATCH", path + suffix, body)
        (recipient,) = service.find_or_create_tenant().recipients.values()
        assert [account.type for account in recipient.accounts] == ["wallet", "bank-transfer"]
        assert get_primary_account(service)["accountHolderName"] == "Ada"
        assert get_primary_account(service)["accountNum"] == "9876543210"


async def test_fields_of_a_new_recipient_are_not_shown_late(tmp_path: Path) -> None:
    service, name = Service(seed=1), {"firstName": "Ada", "lastName": "King"}
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        body = {"type": "individual", **name, "email": "ada@example.com", "language": "fr"}
        created = await request_successfully(gateway, "POST", "/recipients", body)
        await show_as_now(gateway, service)
        (fault,) = service.faults
        # In seconds, as some services write it: a little before the change of the language.
        fault.body = re.sub(rb"[.][0-9]+Z", b"Z", fault.body)
        path = f"/v1/recipients/{created['recipient']['id']}"
        response = await gateway.request("PATCH", path, {"ssn": "****11"})
        assert response.status == 406, response.text


async def test_payout_sent_back_in_the_millisecond_of_a_shown_change_is_unchanged(
    tmp_path: Path,
) -> None:
    now = int(time()) + 0.0004  # the service shows it as .000
    service = Service(seed=1, clock=lambda: now)
    simulator = await start_simulator(service=service)
    try:
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [KEY])
        async with (
            run_gateway(settings, clock=ServiceClock(lambda: now)) as running,
            aiohttp.ClientSession() as session,
        ):
            gateway = GatewayUnderTest(running, settings, session)
            recipient = await create_recipient(gateway)
            path = f"/recipients/{recipient}"
            now += 4
            for payout in (build_wallet("eve@wallet.example.com"), FIRST_WALLET):
                await request_successfully(gateway, "PATCH", f"{path}/payout-methods", payout)
            await request_successfully(gateway, "PATCH", path, {"firstName": "Eve"})
            (stored,) = service.find_or_create_tenant().recipients.values()
            (account,) = stored.accounts
            account_id = account.id
            await request_successfully(gateway, "PATCH", f"{path}/payout-methods", FIRST_WALLET)
            assert account.id == account_id
    finally:
        await simulator.stop()


@pytest.mark.parametrize("is_in_recipient", [False, True], ids=["payout", "recipient"])
async def test_payout_is_not_changed_while_its_last_change_is_not_shown(
    is_in_recipient: bool, tmp_path: Path
) -> None:
    """What a refused request sets back would be what was shown: an earlier primary account."""
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        path, views = f"/recipients/{recipient}/payout-methods", list[Fault]()
        for number in ("1234567890", "9876543210"):
            await show_as_now(gateway, service)
            views += service.faults
            service.faults.clear()
            bank = {**BANK["accounts"]["bank"], "accountNum": number}
            body = {**BANK, "accounts": {"bank": bank}}
            await request_successfully(gateway, "PATCH", path, body)
        before = get_primary_account(service)
        without_bank, with_first_number = views
        # Replicas of the service, of which none shows the last change yet.
        service.faults += [replace(with_first_number, times=1), without_bank]
        payout = build_wallet("eve@wallet.example.com")
        payout["accounts"] |= BANK["accounts"]
        path = f"/v1/recipients/{recipient}" if is_in_recipient else f"/v1{path}"
        body = {"payout": payout} if is_in_recipient else payout
        response = await gateway.request("PATCH", path, body)
        assert (response.status, response.headers.get("Retry-After")) == (500, "5"), response.text
        assert get_primary_account(service) == before
        service.faults.clear()
        assert (await gateway.request("PATCH", path, body)).status == 200
        assert get_primary_account(service)["emailAddress"] == "eve@wallet.example.com"


@pytest.mark.parametrize("is_in_recipient", [False, True], ids=["payout", "recipient"])
async def test_an_added_account_is_deleted_if_the_other_one_is_shown_late(
    is_in_recipient: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        await show_as_now(gateway, service)
        path = f"/recipients/{recipient}"
        (stored,) = service.find_or_create_tenant().recipients.values()
        payout_path = f"{path}/payout-methods"
        await request_successfully(
            gateway, "PATCH", payout_path, build_wallet("eve@wallet.example.com")
        )
        (account,) = stored.accounts
        payout = {**FIRST_WALLET, "accounts": FIRST_WALLET["accounts"] | BANK["accounts"]}
        payout["primary"] = {"method": "wallet", "currency": "USD"}
        if is_in_recipient:
            body = {"payout": payout, "firstName": "Eve"}
            response = await gateway.request("PATCH", f"/v1{path}", body)
        else:
            response = await gateway.request("PATCH", f"/v1{payout_path}", payout)
        assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        assert stored.accounts == [account]
        assert stored.fields["firstName"] == "Ada"


@pytest.mark.parametrize("clock", [time, lambda: int(time() / 10) * 10], ids=["exact", "seconds"])
async def test_a_status_of_ours_outlasts_answers_that_do_not_show_the_change_yet(
    clock: Callable[[], float], tmp_path: Path
) -> None:
    service = Service(seed=1, clock=clock)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        await show_as_now(gateway, service)
        await request_successfully(gateway, "PATCH", path, {"status": "disabled"})
        while True:
            shown = (await request_successfully(gateway, "GET", path))["recipient"]
            assert shown["status"] == "disabled"
            await request_successfully(gateway, "PATCH", path, shown)
            (stored,) = service.find_or_create_tenant().recipients.values()
            assert stored.status == "suspended"
            if not service.faults:
                break
            service.faults.clear()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("PATCH", "", {"ssn": "123456789"}), ("PATCH", "", {"ssn": "****89"})),
        (
            ("PATCH", "/payout-methods", {**BANK, "primary": {"method": "wallet", "currency": "USD"}}),
            ("PATCH", "/payout-methods", {"primary": {"method": "bank"}}),
        ),
        (
            ("POST", "/payout-methods", BANK),
            ("POST", "/payout-methods", {**BANK, "accounts": {"bank": {
                **BANK["accounts"]["bank"], "accountNum": "****90"}}}),
        ),
    ],
    ids=["ssn", "method", "mask"],
)  # fmt: skip
async def test_a_request_that_fits_a_change_not_shown_yet_is_not_refused(
    first: tuple[str, str, Any], second: tuple[str, str, Any], tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        await show_as_now(gateway, service)
        method, suffix, body = first
        await request_successfully(gateway, method, path + suffix, body)
        method, suffix, body = second
        response = await gateway.request(method, f"/v1{path}{suffix}", body)
        if response.status != 200:
            assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        service.faults.clear()
        await request_successfully(gateway, method, path + suffix, body)


BRAZIL = {
    "primary": {"method": "bank", "currency": "BRL"},
    "accounts": {
        "bank": {"country": "BR", "accountNum": "123456789", "governmentId": "12345678909"}
    },
}


@pytest.mark.parametrize(
    ("method", "suffix", "body"),
    [
        ("PATCH", "", {"payout": BRAZIL}),
        ("PATCH", "/payout-methods", BRAZIL),
        ("POST", "/payout-methods", BRAZIL),
    ],
    ids=["recipient", "update", "replacement"],
)
async def test_a_government_id_that_is_not_shown_yet_is_not_lost(
    method: str, suffix: str, body: dict[str, Any], tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        await show_as_now(gateway, service)
        await request_successfully(gateway, "PATCH", path, {"ssn": "123456789"})
        (stored,) = service.find_or_create_tenant().recipients.values()
        (first_id,) = stored.fields["governmentIds"]
        response = await gateway.request(method, f"/v1{path}{suffix}", body)
        assert (response.status, response.headers["Retry-After"]) == (500, "5"), response.text
        service.faults.clear()
        response = await gateway.request(method, f"/v1{path}{suffix}", body)
        assert response.status == 406, response.text
        (error,) = response.body["errors"]
        assert error["field"].endswith("accounts.bank.governmentId")
        assert stored.fields["governmentIds"] == [first_id]


@pytest.mark.parametrize("clock", [time, lambda: int(time())], ids=["slow", "seconds"])
async def test_a_shown_change_is_not_late_by_another_clock(
    clock: Callable[[], float], tmp_path: Path
) -> None:
    seconds_behind = 4
    service = Service(seed=1, clock=lambda: clock() - seconds_behind)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        seconds_behind = 1
        await request_successfully(gateway, "PATCH", path, {"firstName": "Eve"})
        response = await gateway.request("PATCH", f"/v1{path}", {"ssn": "****11"})
        assert response.status == 406, response.text
        await request_successfully(gateway, "POST", f"{path}/payout-methods", BRAZIL)


async def test_two_changes_of_one_second_are_told_apart(tmp_path: Path) -> None:
    now = int(time())
    service = Service(seed=1, clock=lambda: now)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        await request_successfully(gateway, "PATCH", path, {"firstName": "Eve"})
        await show_as_now(gateway, service)
        shown = (await request_successfully(gateway, "GET", path))["recipient"]
        await request_successfully(gateway, "PATCH", path, {"firstName": "Mia"})
        await request_successfully(gateway, "PATCH", path, shown)
        (stored,) = service.find_or_create_tenant().recipients.values()
        assert stored.fields["firstName"] == "Eve"


async def test_a_status_outlasts_an_account_changed_in_the_same_second(tmp_path: Path) -> None:
    now = int(time())
    service = Service(seed=1, clock=lambda: now)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        path = f"/recipients/{await create_recipient(gateway)}"
        now += 4
        payout_path = f"{path}/payout-methods"
        await request_successfully(gateway, "PATCH", payout_path, build_wallet("eve@example.com"))
        await show_as_now(gateway, service)
        await request_successfully(gateway, "PATCH", path, {"status": "disabled"})
        shown = (await request_successfully(gateway, "GET", path))["recipient"]
        assert shown["status"] == "disabled"
