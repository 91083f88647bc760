"""Services with random faults, outages or untrusted certificates, and their recovery."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.journal_check import check_journal
from tests.operator_commands import wait_until_async
from tests.recording_service import (
    BEHAVIOURS,
    PlannedFault,
    ReceivedRequest,
)
from tests.sockets import wait_until
from tests.test_upstream_faults import (
    KINDS,
    LATE_SECONDS,
    MAX_TRIES,
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
"""Writes that may need several attempts at the service; remains of a failed attempt are not shown."""


def build_random_faults(
    seed: int, probability: float = 0.35
) -> Callable[[ReceivedRequest], PlannedFault | None]:
    """Builds a function that draws a fault, or None, for each request."""
    rng = random.Random(seed)
    rare = ("hang", "hang before", "slow", "late", "drip", "404")
    frequent = [behaviour for behaviour in BEHAVIOURS if behaviour not in rare]

    def draw_fault(_request: ReceivedRequest) -> PlannedFault | None:
        if rng.random() > probability:
            return None
        behaviour = (
            rng.choice(frequent) if rng.random() < 0.93 else rng.choice(("hang", "late", "slow"))
        )
        return PlannedFault(behaviour, executes=rng.random() < 0.5, seconds=LATE_SECONDS)

    return draw_fault


async def run_cases_with_random_faults(
    setup: GatewayAndService, cases: list[FaultCase], seed: int, max_tries: int = 3
) -> None:
    """Sends each case's request during random faults, and repeats it afterwards until it succeeds."""
    await gather_limited([prepare_case(setup, case) for case in cases])
    setup.recorder.faults.clear()
    setup.recorder.choose_fault = build_random_faults(seed)
    await gather_limited([case.send_request(setup, max_tries) for case in cases])
    setup.recorder.choose_fault = lambda _request: None
    await wait_until(lambda: setup.recorder.is_idle)
    await check_journal(setup.gateway.settings, setup.recorder)
    setup.clock.ahead_seconds += 60
    for _ in range(MAX_TRIES):
        await gather_limited([case.send_request(setup) for case in cases])
        if all(case.is_final for case in cases):
            break
        await asyncio.sleep(0.5)
    await check_journal(setup.gateway.settings, setup.recorder)


async def describe_wrong_recipient(setup: GatewayAndService, case: FaultCase) -> str | None:
    """Returns what is wrong with a recipient in the legacy list, or None."""
    response = await setup.gateway.request("GET", f"/v1/recipients?search={case.tag}")
    recipients = response.body["recipients"]
    if len(recipients) != 1:
        return f"{case.name}: {len(recipients)} are shown"
    if case.kind.name == "create_with_payout" and not recipients[0]["payout"].get("accounts"):
        return f"{case.name}: without its payout"
    return None


async def list_failures(setup: GatewayAndService, cases: list[FaultCase]) -> list[str]:
    failures = []
    for case in cases:
        viewed = case.is_final and case.kind.name in LISTED_KINDS
        failures.append(
            await describe_wrong_recipient(setup, case) if viewed else describe_failure(setup, case)
        )
    return [failure for failure in failures if failure]


def draw_cases(seed: int, count: int, kinds: tuple[WriteKind, ...] = KINDS) -> list[FaultCase]:
    rng = random.Random(seed)
    drawn_kinds = [rng.choice(kinds) for _ in range(count)]
    return [
        FaultCase(kind, NO_FAULT, rng.randrange(3), f"storm{seed}-{number:03d}-end")
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
        assert all(times == 1 for times in setup.recorder.list_starts.values())
        await wait_until_async(partial(is_nothing_in_doubt, setup))


# Not there


async def test_unsent_write_is_sent_once_the_service_is_back(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        await setup.recorder.close()
        first_response = await setup.gateway.request("POST", "/v1/recipients", build_person("away"))
        assert (first_response.status, first_response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert "nothing was changed" in first_response.body["errors"][0]["message"]
        await setup.recorder.open()
        retry_response = await setup.gateway.request("POST", "/v1/recipients", build_person("away"))
        assert retry_response.status == 200, retry_response.text
        assert len(setup.recorder.list_executed_writes("POST", "/v1/recipients", text="away")) == 1
        assert (await check_journal(setup.gateway.settings, setup.recorder))["unsent"] == 1


async def test_writes_in_flight_at_a_service_crash_are_executed_once(
    tmp_path: Path,
) -> None:
    """Half of them it had carried out by then, half of them not."""
    async with open_gateway_and_recorder(tmp_path, seconds=5) as setup:
        names = [f"hand{number}" for number in range(8)]
        for number, name in enumerate(names):
            setup.recorder.add_fault("hang" if number % 2 else "hang before", text=name)
        pending_responses = [
            asyncio.ensure_future(
                setup.gateway.request("POST", "/v1/recipients", build_person(name))
            )
            for name in names
        ]
        await wait_until(lambda: not setup.recorder.faults)
        await setup.recorder.close()
        assert {response.status for response in await asyncio.gather(*pending_responses)} == {500}
        await check_journal(setup.gateway.settings, setup.recorder)
        await setup.recorder.open()
        setup.clock.ahead_seconds += 60

        async def is_made(name: str) -> bool:
            return (
                await setup.gateway.request("POST", "/v1/recipients", build_person(name))
            ).status == 200

        for name in names:
            await wait_until_async(partial(is_made, name))
        counts = [
            len(setup.recorder.list_executed_writes("POST", "/v1/recipients", text=name))
            for name in names
        ]
        assert counts == [1] * 8
        await check_journal(setup.gateway.settings, setup.recorder)


# Not to be trusted
