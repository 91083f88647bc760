"""Services with random faults, outages or untrusted certificates, and their recovery."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.simulator import Service
from tests.journal_check import check_journal
from tests.operator_commands import wait_until_async
from tests.recording_service import (
    BEHAVIOURS,
    PlannedFault,
    ReceivedRequest,
    RecordingService,
    open_recording_service,
)
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.sockets import wait_until
from tests.state import stored_writes
from tests.test_upstream_faults import (
    KINDS,
    LATE_SECONDS,
    FaultCase,
    GatewayAndService,
    ServiceFault,
    WriteKind,
    build_person,
    describe_failure,
    gather_limited,
    is_nothing_in_doubt,
    open_gateway_and_recorder,
    prepare_case,
)

NO_FAULT = ServiceFault("calm")
LISTED_KINDS = ("create_with_payout", "create_with_language")
"""What may take more than one try at the service: what is left of a try is not shown."""


def build_random_faults(
    seed: int, probability: float = 0.35
) -> Callable[[ReceivedRequest], PlannedFault | None]:
    """Builds a function that draws a fault, or None, for each request."""
    dice = random.Random(seed)
    rare = ("hang", "hang before", "slow", "late", "drip", "404")
    frequent = [how for how in BEHAVIOURS if how not in rare]

    def draw_fault(_heard: ReceivedRequest) -> PlannedFault | None:
        if dice.random() > probability:
            return None
        how = (
            dice.choice(frequent) if dice.random() < 0.93 else dice.choice(("hang", "late", "slow"))
        )
        return PlannedFault(how, executes=dice.random() < 0.5, seconds=LATE_SECONDS)

    return draw_fault


async def run_cases_with_random_faults(
    setup: GatewayAndService, cases: list[FaultCase], seed: int, tries: int = 3
) -> None:
    """Sends each case's request during random faults, and repeats it afterwards until it succeeds."""
    await gather_limited([prepare_case(setup, case) for case in cases])
    setup.judge.faults.clear()
    setup.judge.weather = build_random_faults(seed)
    await gather_limited([case.send_request(setup, tries) for case in cases])
    setup.judge.weather = lambda _heard: None
    await wait_until(lambda: setup.judge.is_idle)
    await check_journal(setup.house.settings, setup.judge)
    setup.ticks.ahead_seconds += 60
    for _ in range(12):
        await gather_limited([case.send_request(setup) for case in cases])
        if all(case.is_final for case in cases):
            break
        await asyncio.sleep(0.5)
    await check_journal(setup.house.settings, setup.judge)


async def describe_wrong_recipient(setup: GatewayAndService, case: FaultCase) -> str | None:
    """Returns what is wrong with a recipient in the legacy list, or None."""
    response = await setup.house.request("GET", f"/v1/recipients?search={case.mark}")
    shown = response.body["recipients"]
    if len(shown) != 1:
        return f"{case.name}: {len(shown)} are shown"
    if case.kind.name == "create_with_payout" and not shown[0]["payout"].get("accounts"):
        return f"{case.name}: without its payout"
    return None


async def list_failures(setup: GatewayAndService, cases: list[FaultCase]) -> list[str]:
    failures = []
    for case in cases:
        viewed = case.is_final and case.kind.name in LISTED_KINDS
        failures.append(
            await describe_wrong_recipient(setup, case) if viewed else describe_failure(setup, case)
        )
    return [told for told in failures if told]


def draw_cases(seed: int, count: int, kinds: tuple[WriteKind, ...] = KINDS) -> list[FaultCase]:
    dice = random.Random(seed)
    drawn_kinds = [dice.choice(kinds) for _ in range(count)]
    return [
        FaultCase(kind, NO_FAULT, dice.randrange(3), f"storm{seed}-{number:03d}-end")
        for number, kind in enumerate(drawn_kinds)
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_faults_cause_no_duplicates_and_all_writes_complete(
    seed: int, tmp_path: Path
) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        cases = draw_cases(seed, 60)
        await run_cases_with_random_faults(setup, cases, seed)
        assert await list_failures(setup, cases) == []
        assert all(times == 1 for times in setup.judge.list_starts.values())
        assert await is_nothing_in_doubt(setup)


# Not there


async def test_unsent_write_is_sent_once_the_service_is_back(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        await setup.judge.close()
        first = await setup.house.request("POST", "/v1/recipients", build_person("away"))
        assert (first.status, first.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert "nothing was changed" in first.body["errors"][0]["message"]
        await setup.judge.open()
        retried = await setup.house.request("POST", "/v1/recipients", build_person("away"))
        assert retried.status == 200, retried.text
        assert len(setup.judge.list_executed_writes("POST", "/v1/recipients", about="away")) == 1
        assert (await check_journal(setup.house.settings, setup.judge))["unsent"] == 1


async def test_writes_in_flight_at_a_service_crash_are_executed_once(
    tmp_path: Path,
) -> None:
    """Half of them it had carried out by then, half of them not."""
    async with open_gateway_and_recorder(tmp_path, seconds=5) as setup:
        names = [f"hand{number}" for number in range(8)]
        for number, name in enumerate(names):
            setup.judge.add_fault("hang" if number % 2 else "hang before", about=name)
        first = [
            asyncio.ensure_future(setup.house.request("POST", "/v1/recipients", build_person(name)))
            for name in names
        ]
        await wait_until(lambda: not setup.judge.faults)
        await setup.judge.close()
        assert {response.status for response in await asyncio.gather(*first)} == {500}
        await check_journal(setup.house.settings, setup.judge)
        await setup.judge.open()
        setup.ticks.ahead_seconds += 60

        async def is_made(name: str) -> bool:
            return (
                await setup.house.request("POST", "/v1/recipients", build_person(name))
            ).status == 200

        for name in names:
            await wait_until_async(partial(is_made, name))
        counts = [
            len(setup.judge.list_executed_writes("POST", "/v1/recipients", about=name))
            for name in names
        ]
        assert counts == [1] * 8
        await check_journal(setup.house.settings, setup.judge)


# Not to be trusted


def create_server_context(folder: Path, begins: timedelta, ends: timedelta) -> ssl.SSLContext:
    """Signed by itself, for this machine."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem")
    return context


async def check_certificate_is_refused(gateway: GatewayUnderTest, judge: RecordingService) -> None:
    response = await gateway.request("POST", "/v1/recipients", build_person("tls"))
    assert (response.status, response.body["errors"][0]["code"]) == (500, "internal_server_error")
    assert judge.requests == []
    (line,) = await stored_writes(gateway.settings)
    assert (line.state, line.operation_state) == ("unsent", "undone")


@pytest.mark.parametrize("ends", [timedelta(days=-1), timedelta(days=1)])
async def test_untrusted_or_expired_certificate_gets_no_request(
    ends: timedelta, tmp_path: Path
) -> None:
    context = create_server_context(tmp_path, timedelta(days=-2), ends)
    async with open_recording_service(Service(seed=1), context) as judge:
        async with open_gateway(tmp_path, judge.url) as gateway:
            await check_certificate_is_refused(gateway, judge)
