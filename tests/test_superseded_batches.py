"""A change of a batch in one process while another creates its replacement and writes to it.

If the service cannot edit a batch, an edit supersedes the service's batch, and another one is
created when it is needed. A process that read or created the earlier batch must not start it, quote
it or add to it: removed payments would be paid. One process is delayed, paused or killed at each of
its calls, on SQLite (one process, restarted) and on PostgreSQL (two processes).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from gateway.simulator import Service, Switches
from gateway.storage import open_store
from gateway.storage.abandoned import abandoned_batches
from tests.gateway.store.conftest import database, postgres, sqlite  # noqa: F401 - fixtures
from tests.house import KEY, Got, import_lines, settings_for
from tests.judge import Heard, Judge, Misdeed, Stage, judging
from tests.kills import DRAFTS
from tests.nursery import Child, Nursery, ask, nursery
from tests.operating import eventually
from tests.payday import make_batch, make_recipient, payment_ids
from tests.signed import Client
from tests.sockets import until
from tests.state import operations_by_state

CLIENT = Client()
TIMEOUT = 5
GONE_SECONDS = 1.0
"""Time after which another process takes over the operations of a killed one."""

TRIES = 60
STATES = pytest.mark.parametrize("state", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def state(request: pytest.FixtureRequest) -> State:
    found: State = request.getfixturevalue(request.param)
    return found


@dataclass(slots=True)
class Instance:
    child: Child
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Got:
        """Sends a request; returns status 500 if there was no answer."""
        more |= {} if body is None else {"json": body}
        got = await ask(self.session, self.child, method, path, **more)
        return got or Got(500, {}, "no answer", None)

    async def ask_signed(self, method: str, path: str, body: Any) -> Got:
        """Sends a signed request of the current interface."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = CLIENT.headers(method, path, data, int(time.time()))
        headers = dict(line.split(": ", 1) for line in lines)
        return await self.ask(method, path, data=data, headers=headers)


@dataclass(slots=True)
class Pair:
    """Two instances with one database; with SQLite both are one process."""

    judge: Judge
    nursery: Nursery
    settings: Settings
    folder: Path
    a: Instance
    b: Instance
    recipient: str = ""

    @property
    def current_recipient(self) -> str:
        """The service's id of the recipient that all batches pay."""
        (only,) = self.judge.service.world().recipients
        return only

    @property
    def is_one(self) -> bool:
        return self.a is self.b

    async def restart(self) -> None:
        """Restarts the first process after it was killed."""
        await self.a.child.ended()
        self.a.child = await self.nursery.start(self.settings, self.folder, GONE_SECONDS)

    async def superseded(self) -> frozenset[str]:
        """Loads the service's ids of superseded batches."""
        async with open_store(self.settings.state) as store:
            return frozenset(one.upstream for one in await abandoned_batches(store))


@asynccontextmanager
async def open_pair(folder: Path, state: State, *, lists: bool) -> AsyncIterator[Pair]:
    """``lists`` is whether the service lists its batches, so that a lost create can be found."""
    service = Service(seed=1, switches=Switches(inferred=lists, processing_seconds=60))
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        nursery() as here,
        judging(service) as judge,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        judge.lacks += DRAFTS
        inferred = "auto" if lists else "avoid"
        settings = settings_for(
            folder,
            judge.url,
            state=state.model_dump(mode="json", exclude_unset=True),
            upstream={"timeout_seconds": TIMEOUT, "inferred_operations": inferred},
        )
        await import_lines(settings, [KEY])

        async def start() -> Instance:
            return Instance(await here.start(settings, folder, GONE_SECONDS), session)

        a = await start()
        b = a if state.url.startswith("sqlite") else await start()
        pair = Pair(judge, here, settings, folder, a, b)
        pair.recipient = await make_recipient(a)  # type: ignore[arg-type]
        yield pair


# What meets


@dataclass
class Draft:
    """A batch of 11, 12 and 13 in which 11 was changed to 21, so that it was superseded."""

    pair: Pair
    id: str
    payments: dict[str, str]
    """Ids of the payments by their first amounts."""
    amounts: set[str]
    """The amounts that clients were answered."""
    is_deleted: bool = False
    is_started: bool = False
    upstream: str = ""
    """The service's batch that was created from the draft."""
    left: dict[str, int] = field(default_factory=dict)
    """Superseded batches, with the number of requests that the service had received by then."""

    async def note_superseded(self) -> None:
        for upstream in await self.pair.superseded():
            self.left.setdefault(upstream, len(self.pair.judge.heard))


async def make_draft(pair: Pair) -> Draft:
    batch = await make_batch(pair.b, pair.recipient, "11.00", "12.00", "13.00")  # type: ignore[arg-type]
    ids = await payment_ids(pair.b, batch)  # type: ignore[arg-type]
    payments = dict(zip(("11.00", "12.00", "13.00"), ids, strict=True))
    path = f"/v1/batches/{batch}/payments/{payments['11.00']}"
    got = await pair.b.ask("PATCH", path, {"sourceAmount": "21.00"})
    assert got.status == 200, got.text
    draft = Draft(pair, batch, payments, {"21.00", "12.00", "13.00"})
    await draft.note_superseded()
    return draft


@dataclass(frozen=True)
class Change:
    """A request, and the changes that a 200 to it confirms."""

    method: str
    path: str
    body: Callable[[Draft], Any] = lambda _draft: None
    adds: str = ""
    removes: str = ""
    deletes: bool = False
    starts: bool = False
    is_signed: bool = False
    """Whether it is a request of the current interface on the service's current batch."""

    async def sent(self, instance: Instance, draft: Draft) -> Got:
        path = self.path.format(removed=draft.payments["12.00"])
        if self.is_signed:
            path = f"/v1/batches/{draft.upstream}{path}"
            return await instance.ask_signed(self.method, path, self.body(draft))
        return await instance.ask(self.method, f"/v1/batches/{draft.id}{path}", self.body(draft))

    def is_confirmed(self, draft: Draft) -> None:
        """Applies the confirmed changes to the expected batch."""
        draft.amounts = (draft.amounts | {self.adds}) - {self.removes, ""}
        draft.is_deleted = draft.is_deleted or self.deletes
        draft.is_started = draft.is_started or self.starts


def _payment(amount: str) -> Callable[[Draft], Any]:
    return lambda draft: {"recipient": {"id": draft.pair.recipient}, "sourceAmount": amount}


START = Change("POST", "/start-processing", starts=True)
FIRST = {
    "start": START,
    "quote": Change("POST", "/generate-quote"),
    "summary": Change("GET", "/summary"),
    "add": Change("POST", "/payments", _payment("14.00"), adds="14.00"),
    "delete": Change("DELETE", "", deletes=True),
}
"""Requests to the first process, which is delayed."""


def _signed_payment(draft: Draft) -> Any:
    recipient = {"id": draft.pair.current_recipient}
    return {"recipient": recipient, "amount": "16.00", "currency": "USD"}


SIGNED = {
    "signed start": Change("POST", "/start-processing", starts=True, is_signed=True),
    "signed quote": Change("POST", "/generate-quote", is_signed=True),
    "signed add": Change("POST", "/payments", _signed_payment, adds="16.00", is_signed=True),
}
FIRST |= SIGNED

REAL = ("add", "delete", *SIGNED)
"""Requests whose draft was created before, so that there is a batch to write to."""

SECOND = {
    "remove": Change("DELETE", "/payments/{removed}", removes="12.00"),
    "add": Change("POST", "/payments", _payment("15.00"), adds="15.00"),
    "change": Change(
        "PATCH",
        "",
        lambda draft: {"remove_payments": [{"id": draft.payments["12.00"]}]},
        removes="12.00",
    ),
    "delete": Change("DELETE", "", deletes=True),
}
"""Concurrent requests to the second process."""


async def prepared(pair: Pair, first: str) -> Draft:
    draft = await make_draft(pair)
    if first in REAL:
        got = await FIRST["quote"].sent(pair.a, draft)
        assert got.status == 200, got.text
        draft.upstream = list(pair.judge.service.world().batches)[-1]
    return draft


# What has to be so in the end


async def check(draft: Draft) -> None:
    """Starts the batch if it is not started, and checks the payments."""
    pair, judge = draft.pair, draft.pair.judge
    if not draft.is_started:
        got = await START.sent(pair.b, draft)
        assert got.status == (404 if draft.is_deleted else 200), got.text
        draft.is_started = not draft.is_deleted
    for upstream, heard in draft.left.items():
        late = [one for one in judge.heard[heard:] if one.is_write and upstream in one.target]
        assert not late, f"sent to a superseded batch: {late}"
    started = [one.batch_id for one in judge.service.starts]
    judge.service.starts.clear()
    assert not {*started} & await pair.superseded()
    if not draft.is_started:
        assert not started
        return
    (upstream,) = started
    batch = judge.service.batch(upstream)
    paid = {str(payment.terms.source) for payment in batch.payments.values()}
    assert paid == draft.amounts
    assert len(batch.payments) == len(paid)


def confirmed(draft: Draft, change: Change, got: Got) -> None:
    refused = (400,) if change.is_signed else (404, 406)
    assert got.status in (200, *refused), got.text
    if got.status == 200:
        change.is_confirmed(draft)


@STATES
@pytest.mark.parametrize("first", FIRST)
async def test_a_change_that_meets_a_request_whose_call_is_under_way(
    state: State, first: str, tmp_path: Path
) -> None:
    """Each answer to the first process is delayed until the second one's change is done or waits."""
    async with open_pair(tmp_path, state, lists=False) as pair:
        for second in ("remove", "delete") if first in SIGNED else SECOND:
            for number in itertools.count():
                if not await _is_met(pair, first, second, number):
                    break
            assert number > 0


async def _is_met(pair: Pair, first: str, second: str, number: int) -> bool:
    """Returns False if the first process makes no more than ``number`` calls."""
    draft = await prepared(pair, first)
    parked = Misdeed("parked", skips=number, due=asyncio.Event())
    pair.judge.misdeeds.append(parked)
    one = asyncio.ensure_future(FIRST[first].sent(pair.a, draft))
    await until(lambda: one.done() or parked not in pair.judge.misdeeds)
    is_met = parked not in pair.judge.misdeeds
    pair.judge.misdeeds.clear()
    other = asyncio.ensure_future(SECOND[second].sent(pair.b, draft))
    await asyncio.wait([other], timeout=0.4)
    if other.done():
        await draft.note_superseded()
    assert parked.due is not None
    parked.due.set()
    for change, got in ((FIRST[first], await one), (SECOND[second], await other)):
        confirmed(draft, change, got)
    await check(draft)
    return is_met


# Paused and killed


@dataclass(slots=True)
class Blow:
    """Sends a signal to the first process at a stage of its n-th upstream request, or later."""

    child: Child
    number: int
    stage: Stage
    signal: signal.Signals
    seconds: float = 0.0
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    _heard: int = -1

    def __call__(self, heard: Heard, stage: Stage) -> None:
        self._heard += stage == "seen"
        if self._heard == self.number and stage == self.stage and not self.struck.is_set():
            self.struck.set()
            asyncio.get_running_loop().call_later(self.seconds, self.child.kill, self.signal)


POINTS: list[tuple[int, Stage, float]] = [
    (0, "executed", 0.0),
    (0, "answered", 0.0),
    (0, "answered", 0.004),
    (0, "answered", 0.012),
    (1, "seen", 0.0),
    (1, "answered", 0.0),
    (1, "answered", 0.008),
    (2, "seen", 0.0),
    (2, "executed", 0.0),
]
"""The first call creates the batch, the second reads it, the third starts or quotes it."""


async def _struck(pair: Pair, draft: Draft, first: str, blow: Blow) -> asyncio.Future[Got]:
    pair.judge.watchers.append(blow)
    one = asyncio.ensure_future(FIRST[first].sent(pair.a, draft))
    async with asyncio.timeout(20):
        await blow.struck.wait()
    pair.judge.watchers.clear()
    await asyncio.sleep(blow.seconds + 0.01)
    return one


async def _told(instance: Instance, change: Change, draft: Draft) -> Got:
    """Repeats a request until its answer states the outcome."""
    for number in range(TRIES):
        got = await change.sent(instance, draft)
        if got.status != 500:
            return got
        await asyncio.sleep(0.2)
        if number > 2:
            instance.child.put_ahead()  # nothing that was sent can be executed any more
    raise AssertionError(got.text)


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
@pytest.mark.parametrize("first", ["start", "quote"])
@pytest.mark.parametrize("second", SECOND)
async def test_a_change_that_meets_a_process_that_is_paused(
    state: State, first: str, second: str, tmp_path: Path
) -> None:
    async with open_pair(tmp_path, state, lists=False) as pair:
        for number, stage, seconds in POINTS:
            draft = await prepared(pair, first)
            blow = Blow(pair.a.child, number, stage, signal.SIGSTOP, seconds)
            one = await _struck(pair, draft, first, blow)
            other = asyncio.ensure_future(_told(pair.b, SECOND[second], draft))
            await asyncio.wait([other], timeout=0.8)
            if other.done():
                await draft.note_superseded()
            pair.a.child.kill(signal.SIGCONT)
            confirmed(draft, FIRST[first], await one)
            confirmed(draft, SECOND[second], await other)
            await check(draft)


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
@pytest.mark.parametrize("first", SIGNED)
async def test_a_change_that_meets_a_process_that_is_paused_with_a_signed_write(
    state: State, first: str, tmp_path: Path
) -> None:
    """The pause is timed, because no earlier upstream call precedes a signed write."""
    async with open_pair(tmp_path, state, lists=False) as pair:
        for milliseconds in range(0, 14, 2):
            draft = await prepared(pair, first)
            one = asyncio.ensure_future(FIRST[first].sent(pair.a, draft))
            await asyncio.sleep(milliseconds / 1000)
            pair.a.child.kill(signal.SIGSTOP)
            other = asyncio.ensure_future(_told(pair.b, SECOND["remove"], draft))
            await asyncio.wait([other], timeout=0.5)
            if other.done():
                await draft.note_superseded()
            pair.a.child.kill(signal.SIGCONT)
            confirmed(draft, FIRST[first], await one)
            confirmed(draft, SECOND["remove"], await other)
            await check(draft)


@STATES
@pytest.mark.parametrize("first", ["start", "quote"])
@pytest.mark.parametrize("second", ["remove", "delete"])
async def test_a_change_that_meets_what_a_killed_process_has_left(
    state: State, first: str, second: str, tmp_path: Path
) -> None:
    async with open_pair(tmp_path, state, lists=True) as pair:
        for number, stage, seconds in _points_of_a_kill():
            draft = await prepared(pair, first)
            blow = Blow(pair.a.child, number, stage, signal.SIGKILL, seconds)
            one = await _struck(pair, draft, first, blow)
            assert (await one).status in (200, 500)
            if pair.is_one:
                await pair.restart()
            confirmed(draft, SECOND[second], await _told(pair.b, SECOND[second], draft))
            await draft.note_superseded()
            confirmed(draft, FIRST[first], await _told(pair.b, FIRST[first], draft))
            await check(draft)
            if not pair.is_one:
                await pair.restart()


def _points_of_a_kill() -> Iterator[tuple[int, Stage, float]]:
    yield from ((0, "answered", 0.004), (1, "seen", 0.0), (1, "answered", 0.008))


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
async def test_what_another_process_has_finished_is_answered_at_a_third(
    state: State, tmp_path: Path
) -> None:
    """No process is sending the answer: a retry must not wait for one."""
    async with open_pair(tmp_path, state, lists=True) as pair:
        draft = await prepared(pair, "add")
        blow = Blow(pair.a.child, 2, "seen", signal.SIGKILL)
        quoting = await _struck(pair, draft, "quote", blow)
        assert (await quoting).status == 500
        heard = len(pair.judge.heard)

        async def is_finished() -> bool:
            return (await operations_by_state(pair.settings))["done"] == 1

        await eventually(is_finished)
        await pair.restart()
        got = await FIRST["quote"].sent(pair.a, draft)
        assert (got.status, got.headers.get("Idempotent-Replayed")) == (200, "true"), got.text
        assert not [one for one in pair.judge.heard[heard:] if one.is_write]
