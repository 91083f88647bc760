"""Every fault of a service's answer, for every kind of write, with a client that retries.

The service's records are checked: no write is executed twice, none is lost, and the journal knows
every write that may have been executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service, Switches
from tests.audit import audit
from tests.house import Got, House, open_house
from tests.judge import HOW, NEVER_EXECUTE, Judge, Misdeed, judging
from tests.operating import Ticks
from tests.payday import WALLET
from tests.sockets import until
from tests.state import operations_by_state

SIDE_BY_SIDE = 16
TRIES = 60
"""The most rounds of retries: on a busy machine a try may end before its call is sent."""


@dataclass
class Town:
    """A gateway in front of a recording service; ``payee`` has a payout method."""

    house: House
    judge: Judge
    ticks: Ticks
    payee: str = ""

    def upstream(self, mark: str) -> str:
        """Returns the service's id of the batch whose description is the mark."""
        return str(self.judge.done("POST", "/v1/batches", about=mark)[-1].made)


@asynccontextmanager
async def town(folder: Path, seconds: float = 1.5, **switches: Any) -> AsyncIterator[Town]:
    service, ticks = Service(switches=Switches(**switches), seed=1), Ticks()
    async with judging(service) as judge:
        upstream = {"timeout_seconds": seconds}
        async with open_house(folder, judge.url, ticks, upstream=upstream) as house:
            here = Town(house, judge, ticks)
            here.payee = await made_recipient(here, "payee", payout=WALLET)
            yield here


# Kinds of writes


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request, and the method and path of the upstream call with the fault."""

    method: str
    path: str
    body: Any = None
    attacked: tuple[str, str] = ("", "")
    about: str = ""
    skips: int = 0


Prepare = Callable[[Town, str], Awaitable[Ask]]
Effect = Callable[[Town, str, Ask], bool]


def person(mark: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "individual",
        "firstName": "Ada",
        "lastName": mark.title(),
        "email": f"{mark}@example.com",
        **more,
    }


def wallet(mark: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{mark}@wallet.example.com"}},
    }


async def good(here: Town, method: str, path: str, body: Any = None) -> Any:
    """Repeats a request until it succeeds: on a busy machine a call may time out."""
    for _ in range(5):
        got = await here.house.ask(method, path, body)
        if got.status == 200:
            return got.body
        await asyncio.sleep(0.2)
    raise AssertionError((method, path, got.text))


async def made_recipient(here: Town, mark: str, **more: Any) -> str:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = person(mark, address=address, **more)
    return str((await good(here, "POST", "/v1/recipients", body))["recipient"]["id"])


async def made_batch(here: Town, mark: str, *amounts: str) -> tuple[str, list[str]]:
    """Creates a batch that pays the payee; returns the client's ids of it and its payments."""
    batch = (await good(here, "POST", "/v1/batches", batch_body(here, mark, *amounts)))["batch"]
    whole = (await good(here, "GET", f"/v1/batches/{batch['id']}"))["batch"]
    return str(batch["id"]), [one["id"] for one in whole["payments"]["payments"]]


def batch_body(here: Town, mark: str, *amounts: str) -> dict[str, Any]:
    to = {"recipient": {"id": here.payee}}
    payments = [{**to, "sourceAmount": amount} for amount in amounts]
    return {"sourceCurrency": "USD", "description": mark, "payments": payments}


def people(here: Town, mark: str) -> list[Any]:
    """Lists the service's recipients with the address of a mark that are not deleted."""
    world = here.judge.service.world()
    address = f"{mark}@example.com"
    return [
        one
        for one in world.recipients.values()
        if one.fields["email"] == address and not one.archived
    ]


def accounts(here: Town, mark: str) -> list[list[str]]:
    return [
        [account.fields["emailAddress"] for account in one.accounts] for one in people(here, mark)
    ]


async def create_recipient(_here: Town, mark: str) -> Ask:
    return Ask("POST", "/v1/recipients", person(mark), ("POST", "/v1/recipients"), mark)


async def create_with_payout(_here: Town, mark: str) -> Ask:
    body = person(mark, payout=wallet(mark))
    return Ask("POST", "/v1/recipients", body, ("POST", "/v1/recipients/*/accounts"), mark)


async def create_with_language(_here: Town, mark: str) -> Ask:
    number = int("".join(filter(str.isdigit, mark)))
    language = f"en-{chr(65 + number // 26 % 26)}{chr(65 + number % 26)}"
    body = person(mark, language=language)
    return Ask("POST", "/v1/recipients", body, ("PATCH", "/v1/recipients/*"), language)


async def change_recipient(here: Town, mark: str) -> Ask:
    id_ = await made_recipient(here, mark)
    path = f"/v1/recipients/{id_}"
    return Ask("PATCH", path, {"firstName": "Augusta"}, ("PATCH", path), id_)


async def delete_recipient(here: Town, mark: str) -> Ask:
    id_ = await made_recipient(here, mark)
    path = f"/v1/recipients/{id_}"
    return Ask("DELETE", path, None, ("DELETE", path), id_)


async def delete_recipients(here: Town, mark: str) -> Ask:
    ids = [await made_recipient(here, mark), await made_recipient(here, f"{mark}x")]
    return Ask("DELETE", "/v1/recipients", {"ids": ids}, ("DELETE", "/v1/recipients"), ids[0])


async def create_payout_method(here: Town, mark: str) -> Ask:
    id_ = await made_recipient(here, mark)
    path, attacked = f"/v1/recipients/{id_}/payout-methods", f"/v1/recipients/{id_}/accounts"
    return Ask("POST", path, wallet(mark), ("POST", attacked), id_)


async def change_payout_method(here: Town, mark: str) -> Ask:
    id_ = await made_recipient(here, mark, payout=wallet(mark))
    path, attacked = f"/v1/recipients/{id_}/payout-methods", f"/v1/recipients/{id_}/accounts/*"
    return Ask("PATCH", path, wallet(f"{mark}x"), ("PATCH", attacked), id_)


async def create_batch(here: Town, mark: str) -> Ask:
    body = batch_body(here, mark, "10.00", "10.00")
    return Ask("POST", "/v1/batches", body, ("POST", "/v1/batches"), mark)


async def create_payment(here: Town, mark: str) -> Ask:
    batch, _ = await made_batch(here, mark, "10.00")
    body = {"recipient": {"id": here.payee}, "sourceAmount": "10.00"}
    upstream = here.upstream(mark)
    attacked = ("POST", f"/v1/batches/{upstream}/payments")
    return Ask("POST", f"/v1/batches/{batch}/payments", body, attacked, upstream)


async def change_batch(here: Town, mark: str) -> Ask:
    batch, payments = await made_batch(here, mark, "10.00", "20.00")
    body = {
        "payments": [{"recipient": {"id": here.payee}, "sourceAmount": "30.00"}],
        "update_payments": [{"id": payments[0], "sourceAmount": "11.00"}],
        "remove_payments": [{"id": payments[1]}],
    }
    upstream = here.upstream(mark)
    attacked = ("PATCH", f"/v1/batches/{upstream}")
    return Ask("PATCH", f"/v1/batches/{batch}", body, attacked, upstream)


async def change_payment(here: Town, mark: str) -> Ask:
    batch, payments = await made_batch(here, mark, "10.00")
    upstream = here.upstream(mark)
    attacked = ("PATCH", f"/v1/batches/{upstream}/payments/*")
    path = f"/v1/batches/{batch}/payments/{payments[0]}"
    return Ask("PATCH", path, {"sourceAmount": "11.00"}, attacked, upstream)


async def delete_payment(here: Town, mark: str) -> Ask:
    batch, payments = await made_batch(here, mark, "10.00", "20.00")
    upstream = here.upstream(mark)
    attacked = ("DELETE", f"/v1/batches/{upstream}/payments/*")
    return Ask("DELETE", f"/v1/batches/{batch}/payments/{payments[0]}", None, attacked, upstream)


async def _of_a_batch(here: Town, mark: str, method: str, more: str = "") -> Ask:
    """Prepares a write on a batch."""
    batch, _ = await made_batch(here, mark, "10.00")
    upstream = here.upstream(mark)
    attacked = (method, f"/v1/batches/{upstream}{more}")
    return Ask(method, f"/v1/batches/{batch}{more}", None, attacked, upstream)


async def delete_batch(here: Town, mark: str) -> Ask:
    return await _of_a_batch(here, mark, "DELETE")


async def delete_batches(here: Town, mark: str) -> Ask:
    """The fault is in the deletion of the second batch, after that of the first."""
    ids = [(await made_batch(here, f"{mark}{n}", "10.00"))[0] for n in (1, 2)]
    upstream = here.upstream(f"{mark}2")
    attacked = ("DELETE", f"/v1/batches/{upstream}")
    return Ask("DELETE", "/v1/batches", {"ids": ids}, attacked, upstream)


async def quote(here: Town, mark: str) -> Ask:
    return await _of_a_batch(here, mark, "POST", "/generate-quote")


async def start(here: Town, mark: str) -> Ask:
    return await _of_a_batch(here, mark, "POST", "/start-processing")


# Expected effects at the service


def one_person(here: Town, mark: str, _ask: Ask) -> bool:
    return len(people(here, mark)) == 1


def one_person_with_an_account(here: Town, mark: str, _ask: Ask) -> bool:
    return accounts(here, mark) == [[f"{mark}@wallet.example.com"]]


def another_account(here: Town, mark: str, _ask: Ask) -> bool:
    return accounts(here, mark) == [[f"{mark}x@wallet.example.com"]]


def nobody(here: Town, mark: str, _ask: Ask) -> bool:
    return not people(here, mark)


def other_name(here: Town, mark: str, _ask: Ask) -> bool:
    return [one.fields["firstName"] for one in people(here, mark)] == ["Augusta"]


def one_batch(here: Town, mark: str, _ask: Ask) -> bool:
    batches = here.judge.service.world().batches.values()
    return [len(one.payments) for one in batches if one.description == mark] == [2]


def no_batch(here: Town, _mark: str, ask: Ask) -> bool:
    return ask.about not in here.judge.service.world().batches


def paying(*amounts: str) -> Effect:
    def effect(here: Town, _mark: str, ask: Ask) -> bool:
        batch = here.judge.service.batch(ask.about)
        return sorted(str(one.amount) for one in batch.payments.values()) == sorted(amounts)

    return effect


def started(here: Town, _mark: str, ask: Ask) -> bool:
    return here.judge.starts[ask.about] == 1


def open_batch(here: Town, _mark: str, ask: Ask) -> bool:
    return here.judge.service.batch(ask.about).state == "open"


@dataclass(frozen=True, slots=True)
class Kind:
    prepare: Prepare
    effect: Effect
    times: int | None = 1
    """How often the call with the fault is executed; None if it may be repeated."""
    inferred: bool = False

    @property
    def name(self) -> str:
        return self.prepare.__name__


KINDS = (
    Kind(create_recipient, one_person),
    Kind(create_with_payout, one_person_with_an_account),
    Kind(create_with_language, one_person),
    Kind(change_recipient, other_name),
    Kind(delete_recipient, nobody),
    Kind(delete_recipients, nobody),
    Kind(create_payout_method, one_person_with_an_account),
    Kind(change_payout_method, another_account),
    Kind(create_batch, one_batch),
    Kind(create_payment, paying("10.00", "10.00")),
    Kind(change_batch, paying("11.00", "30.00"), inferred=True),
    Kind(change_payment, paying("11.00"), inferred=True),
    Kind(delete_payment, paying("20.00"), inferred=True),
    Kind(delete_batch, no_batch, inferred=True),
    Kind(delete_batches, no_batch, inferred=True),
    Kind(quote, open_batch, times=None),
    Kind(start, started),
)
BY_NAME = {kind.name: kind for kind in KINDS}

# Faults

LATE = 2.5
"""Delay of the execution of a late call: the gateway has timed out by then."""


@dataclass(frozen=True, slots=True)
class Fault:
    how: str
    executes: bool = True

    @property
    def name(self) -> str:
        return self.how if self.executes or self.how in NEVER_EXECUTE else f"{self.how}, not done"


_TELLING = (
    "html 200",
    "html 502",
    "redirect 307",
    "500 json",
    "500 empty",
    "503 json",
    "503 empty",
)
FAULTS = tuple(Fault(how) for how in HOW if how != "404") + tuple(
    Fault(how, executes=False) for how in _TELLING
)
_MAIN = ("reset before", "reset", "late", "slow", "half json", "html 502", "500 json", "429")
MAIN_FAULTS = (*map(Fault, _MAIN), Fault("503 empty", executes=False))


# A client that retries


@dataclass(slots=True)
class Case:
    kind: Kind
    fault: Fault
    style: int
    mark: str
    ask: Ask = field(default_factory=lambda: Ask("", ""))
    misdeed: Misdeed | None = None
    answers: list[Got] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind.name}: {self.fault.name}, {STYLES[self.style]}"

    @property
    def is_final(self) -> bool:
        return bool(self.answers) and self.answers[-1].status == 200

    def has_met(self, here: Town) -> bool:
        """Whether the planned fault has occurred."""
        return not any(one is self.misdeed for one in here.judge.misdeeds)

    async def tries(self, here: Town, times: int = 1) -> None:
        headers = {"Idempotency-Key": self.mark} if STYLES[self.style] == "with a key" else {}
        ask = self.ask
        for _ in range(times):
            if not self.is_final:
                got = await here.house.ask(ask.method, ask.path, ask.body, headers=headers)
                self.answers.append(got)
                assert got.status in (200, 429, 500), (self.name, got.status, got.text)
                assert got.text.startswith('{"ok":true' if got.status == 200 else '{"ok":false')


STYLES = ("at once", "with a key", "after a while")


async def prepare(here: Town, case: Case) -> None:
    case.ask = ask = await case.kind.prepare(here, case.mark)
    seconds = {"late": LATE, "slow": LATE}.get(case.fault.how, 0)
    case.misdeed = Misdeed(
        case.fault.how, *ask.attacked, ask.about, case.fault.executes, seconds, skips=ask.skips
    )
    here.judge.misdeeds.append(case.misdeed)


async def side_by_side(those: Sequence[Awaitable[Any]]) -> None:
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(what: Awaitable[Any]) -> None:
        async with places:
            await what

    await asyncio.gather(*map(one, those))


async def carried_out(here: Town, cases: list[Case]) -> None:
    """Sends the request of each case, and repeats it after its fault until it succeeds."""
    await side_by_side([prepare(here, case) for case in cases])
    await side_by_side([case.tries(here, 3 if case.style == 0 else 1) for case in cases])
    for _ in range(TRIES):
        if not (unmet := [case for case in cases if not case.has_met(here) and not case.is_final]):
            break
        await side_by_side([case.tries(here) for case in unmet])
    assert not here.judge.misdeeds, here.judge.misdeeds
    await until(lambda: here.judge.is_idle)
    await audit(here.house.settings, here.judge)
    here.ticks.ahead += 60  # after this, no sent call can be executed any more
    for _ in range(TRIES):
        await side_by_side([case.tries(here) for case in cases])
        if all(case.is_final for case in cases):
            break
        await asyncio.sleep(0.3)
    await audit(here.house.settings, here.judge)


def check(here: Town, case: Case) -> str | None:
    """Returns what is wrong with the result of a case, or None."""
    ask, judge = case.ask, here.judge
    if not case.is_final:
        return f"{case.name}: no end: {[got.text for got in case.answers]}"
    if not case.kind.effect(here, case.mark, ask):
        return f"{case.name}: not what was asked for"
    times = len(judge.done(*ask.attacked, about=ask.about))
    if case.kind.times is not None and times != case.kind.times:
        return f"{case.name}: executed {times} times"
    return None


def cases_of(kinds: Sequence[Kind], faults: Sequence[Fault], mark: str = "one") -> list[Case]:
    both = [(kind, fault) for kind in kinds for fault in faults]
    return [
        Case(kind, fault, number % len(STYLES), f"{mark}-{number:03d}-end")
        for number, (kind, fault) in enumerate(both)
    ]


async def settled(here: Town) -> bool:
    """Whether no write is running or in doubt."""
    states = await operations_by_state(here.house.settings)
    return not states["running"] and not states["unsettled"]


async def all_well(here: Town, cases: list[Case]) -> None:
    await carried_out(here, cases)
    wrong = [told for case in cases if (told := check(here, case))]
    assert not wrong, "\n".join(wrong)
    assert all(times == 1 for times in here.judge.starts.values())


FIRST = ("create_recipient", "create_with_payout", "create_batch", "create_payment", "start")


@pytest.mark.parametrize("name", FIRST)
async def test_whatever_becomes_of_the_answer_a_write_is_carried_out_once(
    name: str, tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        await all_well(here, cases_of([BY_NAME[name]], FAULTS))
        assert await settled(here)


async def test_every_other_write_is_carried_out_once_too(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind.name not in FIRST]
    async with town(tmp_path) as here:
        await all_well(here, cases_of(kinds, MAIN_FAULTS))
        assert await settled(here)
