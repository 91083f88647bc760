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
from tests.audit import audit
from tests.house import House, open_house
from tests.judge import HOW, Heard, Judge, Misdeed, judging
from tests.operating import eventually
from tests.sockets import until
from tests.state import stored_writes
from tests.test_faults import (
    KINDS,
    LATE,
    Case,
    Fault,
    Kind,
    Town,
    check,
    person,
    prepare,
    settled,
    side_by_side,
    town,
)

CALM = Fault("calm")
VIEWED = ("create_with_payout", "create_with_language")
"""What may take more than one try at the service: what is left of a try is not shown."""


def storm(seed: int, part: float = 0.35) -> Callable[[Heard], Misdeed | None]:
    """Builds a function that draws a fault, or None, for each request."""
    dice = random.Random(seed)
    seldom = ("hang", "hang before", "slow", "late", "drip", "404")
    often = [how for how in HOW if how not in seldom]

    def weather(_heard: Heard) -> Misdeed | None:
        if dice.random() > part:
            return None
        how = dice.choice(often) if dice.random() < 0.93 else dice.choice(("hang", "late", "slow"))
        return Misdeed(how, executes=dice.random() < 0.5, seconds=LATE)

    return weather


async def weathered(here: Town, cases: list[Case], seed: int, tries: int = 3) -> None:
    """Sends each case's request during random faults, and repeats it afterwards until it succeeds."""
    await side_by_side([prepare(here, case) for case in cases])
    here.judge.misdeeds.clear()
    here.judge.weather = storm(seed)
    await side_by_side([case.tries(here, tries) for case in cases])
    here.judge.weather = lambda _heard: None
    await until(lambda: here.judge.is_idle)
    await audit(here.house.settings, here.judge)
    here.ticks.ahead += 60
    for _ in range(12):
        await side_by_side([case.tries(here) for case in cases])
        if all(case.is_final for case in cases):
            break
        await asyncio.sleep(0.5)
    await audit(here.house.settings, here.judge)


async def seen(here: Town, case: Case) -> str | None:
    """Returns what is wrong with a recipient in the legacy list, or None."""
    got = await here.house.ask("GET", f"/v1/recipients?search={case.mark}")
    shown = got.body["recipients"]
    if len(shown) != 1:
        return f"{case.name}: {len(shown)} are shown"
    if case.kind.name == "create_with_payout" and not shown[0]["payout"].get("accounts"):
        return f"{case.name}: without its payout"
    return None


async def what_is_wrong(here: Town, cases: list[Case]) -> list[str]:
    wrong = []
    for case in cases:
        viewed = case.is_final and case.kind.name in VIEWED
        wrong.append(await seen(here, case) if viewed else check(here, case))
    return [told for told in wrong if told]


def mixed(seed: int, many: int, kinds: tuple[Kind, ...] = KINDS) -> list[Case]:
    dice = random.Random(seed)
    those = [dice.choice(kinds) for _ in range(many)]
    return [
        Case(kind, CALM, dice.randrange(3), f"storm{seed}-{number:03d}-end")
        for number, kind in enumerate(those)
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_in_a_storm_nothing_is_done_twice_and_after_it_all_is_done(
    seed: int, tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        cases = mixed(seed, 60)
        await weathered(here, cases, seed)
        assert await what_is_wrong(here, cases) == []
        assert all(times == 1 for times in here.judge.starts.values())
        assert await settled(here)


# Not there


async def test_what_never_left_is_sent_as_soon_as_the_service_is_there_again(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as here:
        await here.judge.close()
        first = await here.house.ask("POST", "/v1/recipients", person("away"))
        assert (first.status, first.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert "nothing was changed" in first.body["errors"][0]["message"]
        await here.judge.open()
        again = await here.house.ask("POST", "/v1/recipients", person("away"))
        assert again.status == 200, again.text
        assert len(here.judge.done("POST", "/v1/recipients", about="away")) == 1
        assert (await audit(here.house.settings, here.judge))["unsent"] == 1


async def test_a_service_that_is_killed_with_requests_in_hand_keeps_what_it_had_done(
    tmp_path: Path,
) -> None:
    """Half of them it had carried out by then, half of them not."""
    async with town(tmp_path, seconds=5) as here:
        names = [f"hand{number}" for number in range(8)]
        for number, name in enumerate(names):
            here.judge.does("hang" if number % 2 else "hang before", about=name)
        first = [
            asyncio.ensure_future(here.house.ask("POST", "/v1/recipients", person(name)))
            for name in names
        ]
        await until(lambda: not here.judge.misdeeds)
        await here.judge.close()
        assert {got.status for got in await asyncio.gather(*first)} == {500}
        await audit(here.house.settings, here.judge)
        await here.judge.open()
        here.ticks.ahead += 60

        async def is_made(name: str) -> bool:
            return (await here.house.ask("POST", "/v1/recipients", person(name))).status == 200

        for name in names:
            await eventually(partial(is_made, name))
        counts = [len(here.judge.done("POST", "/v1/recipients", about=name)) for name in names]
        assert counts == [1] * 8
        await audit(here.house.settings, here.judge)


# Not to be trusted


def certificate(folder: Path, begins: timedelta, ends: timedelta) -> ssl.SSLContext:
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


async def refused_for_its_certificate(house: House, judge: Judge) -> None:
    got = await house.ask("POST", "/v1/recipients", person("tls"))
    assert (got.status, got.body["errors"][0]["code"]) == (500, "internal_server_error")
    assert judge.heard == []
    (line,) = await stored_writes(house.settings)
    assert (line.state, line.operation_state) == ("unsent", "undone")


@pytest.mark.parametrize("ends", [timedelta(days=-1), timedelta(days=1)])
async def test_a_certificate_that_is_expired_or_nobodys_gets_no_request(
    ends: timedelta, tmp_path: Path
) -> None:
    context = certificate(tmp_path, timedelta(days=-2), ends)
    async with judging(Service(seed=1), context) as judge:
        async with open_house(tmp_path, judge.url) as house:
            await refused_for_its_certificate(house, judge)
