"""A change of a batch in one process while another creates its replacement and writes to it.

If the service cannot edit a batch, an edit supersedes the service's batch, and another one is
created when it is needed. A process that read or created the earlier batch must not start it, quote
it or add to it: removed payments would be paid. One process is delayed, paused or killed at each of
its calls. The simulation draws more combinations of these requests; here processes share nothing but
their database.
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
from gateway.storage import open_store
from gateway.storage.superseded_batches import list_superseded_batches
from gateway.writes.instance_leases import LEASE_TTL_SECONDS
from tests.gateway.storage.conftest import database, postgres, sqlite  # noqa: F401 - fixtures
from tests.gateway_processes import GatewayForker, GatewayProcess, open_forker, request_gateway
from tests.killed_gateways import UNSUPPORTED_EDITS
from tests.operator_commands import wait_until_async
from tests.payouts import create_batch, create_recipient, load_payment_ids
from tests.recording_service import (
    PlannedFault,
    ReceivedRequest,
    RecordingService,
    Stage,
    open_recording_service,
)
from tests.running_gateway import KEY, GatewayResponse, build_settings, import_api_keys
from tests.signed_requests import SigningClient
from tests.simulator import Service, ServiceOptions
from tests.sockets import wait_until
from tests.state import count_operations_by_state

CLIENT = SigningClient()
TIMEOUT_SECONDS = 5
GONE_SECONDS = 1.0
"""Time after which another process takes over the operations of a killed one."""

MAX_TRIES = 60


@pytest.fixture
def state(request: pytest.FixtureRequest) -> State:
    state_settings: State = request.getfixturevalue(request.param)
    return state_settings


@dataclass(slots=True)
class GatewayInstance:
    process: GatewayProcess
    session: aiohttp.ClientSession

    async def request(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> GatewayResponse:
        """Sends a request; returns status 500 if there was no answer."""
        options |= {} if body is None else {"json": body}
        response = await request_gateway(self.session, self.process, method, path, **options)
        return response or GatewayResponse(500, {}, "no answer", None)

    async def request_signed(self, method: str, path: str, body: Any) -> GatewayResponse:
        """Sends a signed request of the current interface."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = CLIENT.build_headers(method, path, data, int(time.time()))
        headers = dict(line.split(": ", 1) for line in lines)
        return await self.request(method, path, data=data, headers=headers)


@dataclass(slots=True)
class GatewayPair:
    """Two instances with one database; with SQLite both are one process."""

    recorder: RecordingService
    forker: GatewayForker
    settings: Settings
    folder: Path
    first: GatewayInstance
    second: GatewayInstance
    recipient: str = ""

    @property
    def current_recipient(self) -> str:
        """The service's id of the recipient that all batches pay."""
        (recipient,) = self.recorder.service.find_or_create_tenant().recipients
        return recipient

    @property
    def is_one(self) -> bool:
        return self.first is self.second

    async def restart(self) -> None:
        """Restarts the first process after it was killed."""
        await self.first.process.wait()
        self.first.process = await self.forker.start(self.settings, self.folder, GONE_SECONDS)

    async def load_superseded(self) -> frozenset[str]:
        """Loads the service's ids of superseded batches."""
        async with open_store(self.settings.state) as store:
            return frozenset(batch.upstream_id for batch in await list_superseded_batches(store))


@asynccontextmanager
async def open_pair(folder: Path, state: State, *, lists: bool) -> AsyncIterator[GatewayPair]:
    """``lists`` is whether the service lists its batches, so that a lost create can be found."""
    service = Service(seed=1, options=ServiceOptions(inferred=lists, processing_seconds=60))
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        open_forker() as setup,
        open_recording_service(service) as recorder,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        recorder.missing_endpoints += UNSUPPORTED_EDITS
        inferred_mode = "auto" if lists else "avoid"
        settings = build_settings(
            folder,
            recorder.url,
            state=state.model_dump(mode="json", exclude_unset=True),
            upstream={"timeout_seconds": TIMEOUT_SECONDS, "inferred_operations": inferred_mode},
        )
        await import_api_keys(settings, [KEY])

        async def start_instance() -> GatewayInstance:
            return GatewayInstance(await setup.start(settings, folder, GONE_SECONDS), session)

        first_instance = await start_instance()
        second_instance = (
            first_instance if state.url.startswith("sqlite") else await start_instance()
        )
        pair = GatewayPair(recorder, setup, settings, folder, first_instance, second_instance)
        pair.recipient = await create_recipient(first_instance)  # type: ignore[arg-type]
        yield pair


# Concurrent requests


@dataclass
class ChangedBatch:
    """A batch of 11, 12 and 13 in which 11 was changed to 21, so that it was superseded."""

    pair: GatewayPair
    id: str
    payments: dict[str, str]
    """Ids of the payments by their first amounts."""
    amounts: set[str]
    """The amounts that clients were answered."""
    is_deleted: bool = False
    is_started: bool = False
    upstream: str = ""
    """The service's batch that was created from the draft."""
    superseded_at: dict[str, int] = field(default_factory=dict)
    """Superseded batches, with the number of requests that the service had received by then."""

    async def note_superseded(self) -> None:
        for upstream in await self.pair.load_superseded():
            self.superseded_at.setdefault(upstream, len(self.pair.recorder.requests))


async def create_changed_batch(pair: GatewayPair) -> ChangedBatch:
    batch = await create_batch(pair.second, pair.recipient, "11.00", "12.00", "13.00")  # type: ignore[arg-type]
    ids = await load_payment_ids(pair.second, batch)  # type: ignore[arg-type]
    payments = dict(zip(("11.00", "12.00", "13.00"), ids, strict=True))
    path = f"/v1/batches/{batch}/payments/{payments['11.00']}"
    response = await pair.second.request("PATCH", path, {"sourceAmount": "21.00"})
    assert response.status == 200, response.text
    draft = ChangedBatch(pair, batch, payments, {"21.00", "12.00", "13.00"})
    await draft.note_superseded()
    return draft


@dataclass(frozen=True)
class BatchRequest:
    """A request, and the changes that a 200 to it confirms."""

    method: str
    path: str
    body: Callable[[ChangedBatch], Any] = lambda _draft: None
    adds: str = ""
    removed_amount: str = ""
    is_deletion: bool = False
    is_start: bool = False
    is_signed: bool = False
    """Whether it is a request of the current interface on the service's current batch."""

    async def send(self, instance: GatewayInstance, draft: ChangedBatch) -> GatewayResponse:
        path = self.path.format(removed=draft.payments["12.00"])
        if self.is_signed:
            path = f"/v1/batches/{draft.upstream}{path}"
            return await instance.request_signed(self.method, path, self.body(draft))
        return await instance.request(
            self.method, f"/v1/batches/{draft.id}{path}", self.body(draft)
        )

    def apply(self, draft: ChangedBatch) -> None:
        """Applies the confirmed changes to the expected batch."""
        draft.amounts = (draft.amounts | {self.adds}) - {self.removed_amount, ""}
        draft.is_deleted = draft.is_deleted or self.is_deletion
        draft.is_started = draft.is_started or self.is_start


def _build_payment(amount: str) -> Callable[[ChangedBatch], Any]:
    return lambda draft: {"recipient": {"id": draft.pair.recipient}, "sourceAmount": amount}


START_REQUEST = BatchRequest("POST", "/start-processing", is_start=True)
FIRST_REQUESTS = {
    "start": START_REQUEST,
    "quote": BatchRequest("POST", "/generate-quote"),
    "summary": BatchRequest("GET", "/summary"),
    "add": BatchRequest("POST", "/payments", _build_payment("14.00"), adds="14.00"),
    "delete": BatchRequest("DELETE", "", is_deletion=True),
}
"""Requests to the first process, which is delayed."""


def _build_signed_payment(draft: ChangedBatch) -> Any:
    recipient = {"id": draft.pair.current_recipient}
    return {"recipient": recipient, "amount": "16.00", "currency": "USD"}


SIGNED_REQUESTS = {
    "signed start": BatchRequest("POST", "/start-processing", is_start=True, is_signed=True),
    "signed quote": BatchRequest("POST", "/generate-quote", is_signed=True),
    "signed add": BatchRequest(
        "POST", "/payments", _build_signed_payment, adds="16.00", is_signed=True
    ),
}
FIRST_REQUESTS |= SIGNED_REQUESTS

ON_CREATED_DRAFT = ("add", "delete", *SIGNED_REQUESTS)
"""Requests whose draft was created before, so that there is a batch to write to."""

SECOND_REQUESTS = {
    "remove": BatchRequest("DELETE", "/payments/{removed}", removed_amount="12.00"),
    "add": BatchRequest("POST", "/payments", _build_payment("15.00"), adds="15.00"),
    "change": BatchRequest(
        "PATCH",
        "",
        lambda draft: {"remove_payments": [{"id": draft.payments["12.00"]}]},
        removed_amount="12.00",
    ),
    "delete": BatchRequest("DELETE", "", is_deletion=True),
}
"""Concurrent requests to the second process."""


async def prepare_batch(pair: GatewayPair, first_name: str) -> ChangedBatch:
    draft = await create_changed_batch(pair)
    if first_name in ON_CREATED_DRAFT:
        response = await FIRST_REQUESTS["quote"].send(pair.first, draft)
        assert response.status == 200, response.text
        draft.upstream = list(pair.recorder.service.find_or_create_tenant().batches)[-1]
    return draft


# What has to be so in the end


async def check_payout(draft: ChangedBatch) -> None:
    """Starts the batch if it is not started, and checks the payments."""
    pair, recorder = draft.pair, draft.pair.recorder
    if not draft.is_started:
        response = await START_REQUEST.send(pair.second, draft)
        assert response.status == (404 if draft.is_deleted else 200), response.text
        draft.is_started = not draft.is_deleted
    for upstream, request_count in draft.superseded_at.items():
        late_requests = [
            entry
            for entry in recorder.requests[request_count:]
            if entry.is_write and upstream in entry.target
        ]
        assert not late_requests, f"sent to a superseded batch: {late_requests}"
    started_ids = [started_batch.batch_id for started_batch in recorder.service.batch_starts]
    recorder.service.batch_starts.clear()
    assert not {*started_ids} & await pair.load_superseded()
    if not draft.is_started:
        assert not started_ids
        return
    (upstream,) = started_ids
    batch = recorder.service.require_batch(upstream)
    paid_amounts = {str(payment.terms.source_amount) for payment in batch.payments.values()}
    assert paid_amounts == draft.amounts
    assert len(batch.payments) == len(paid_amounts)


def check_response(draft: ChangedBatch, change: BatchRequest, response: GatewayResponse) -> None:
    refused_statuses = (400,) if change.is_signed else (404, 406)
    assert response.status in (200, *refused_statuses), response.text
    if response.status == 200:
        change.apply(draft)


CONCURRENT_REQUESTS = {
    "legacy": [
        ("start", "remove"),
        ("start", "delete"),
        ("quote", "add"),
        ("add", "remove"),
        ("delete", "add"),
    ],
    # The simulation draws no deletion beside a signed request, and no signed quote.
    "signed": [(first, second) for first in SIGNED_REQUESTS for second in ("remove", "delete")],
}


@pytest.mark.parametrize("interface", CONCURRENT_REQUESTS)
async def test_change_during_an_upstream_call_of_another_request(
    postgres: State,  # noqa: F811
    interface: str,
    tmp_path: Path,
) -> None:
    """Each answer to the first process is delayed until the second one's change is done or waits."""
    async with open_pair(tmp_path, postgres, lists=False) as pair:
        for names in CONCURRENT_REQUESTS[interface]:
            for number in itertools.count():
                if not await _run_concurrently(pair, *names, number):
                    break
            assert number > 0, names


async def _run_concurrently(
    pair: GatewayPair, first_name: str, second_name: str, number: int
) -> bool:
    """Returns False if the first process makes no more than ``number`` calls."""
    draft = await prepare_batch(pair, first_name)
    parked_fault = PlannedFault("parked", skip_count=number, due_event=asyncio.Event())
    pair.recorder.faults.append(parked_fault)
    first_task = asyncio.ensure_future(FIRST_REQUESTS[first_name].send(pair.first, draft))
    await wait_until(lambda: first_task.done() or parked_fault not in pair.recorder.faults)
    is_met = parked_fault not in pair.recorder.faults
    pair.recorder.faults.clear()
    second_task = asyncio.ensure_future(SECOND_REQUESTS[second_name].send(pair.second, draft))
    await asyncio.wait([second_task], timeout=0.4)
    if second_task.done():
        await draft.note_superseded()
    assert parked_fault.due_event is not None
    parked_fault.due_event.set()
    for change, response in (
        (FIRST_REQUESTS[first_name], await first_task),
        (SECOND_REQUESTS[second_name], await second_task),
    ):
        check_response(draft, change, response)
    await check_payout(draft)
    return is_met


# Paused and killed


@dataclass(slots=True)
class SignalAtStage:
    """Sends a signal to the first process at a stage of its n-th upstream request, or later."""

    child: GatewayProcess
    number: int
    stage: Stage
    signal: signal.Signals
    seconds: float = 0.0
    is_sent: asyncio.Event = field(default_factory=asyncio.Event)
    _call_index: int = -1

    def __call__(self, request: ReceivedRequest, stage: Stage) -> None:
        self._call_index += stage == "seen"
        if self._call_index == self.number and stage == self.stage and not self.is_sent.is_set():
            self.is_sent.set()
            asyncio.get_running_loop().call_later(self.seconds, self.child.kill, self.signal)


SIGNAL_POINTS: list[tuple[int, Stage, float]] = [
    (0, "executed", 0.0),
    (0, "answered", 0.0),
    (0, "answered", 0.012),
    (1, "seen", 0.0),
    (1, "answered", 0.0),
    (2, "seen", 0.0),
    (2, "executed", 0.0),
]
"""The first call creates the batch, the second reads it, the third starts or quotes it."""


async def _request_and_signal(
    pair: GatewayPair, draft: ChangedBatch, first_name: str, stage_signal: SignalAtStage
) -> asyncio.Future[GatewayResponse]:
    pair.recorder.watchers.append(stage_signal)
    first_task = asyncio.ensure_future(FIRST_REQUESTS[first_name].send(pair.first, draft))
    async with asyncio.timeout(20):
        await stage_signal.is_sent.wait()
    pair.recorder.watchers.clear()
    await asyncio.sleep(stage_signal.seconds + 0.01)
    return first_task


async def _request_until_answered(
    instance: GatewayInstance, change: BatchRequest, draft: ChangedBatch
) -> GatewayResponse:
    """Repeats a request until its answer states the outcome."""
    for number in range(MAX_TRIES):
        response = await change.send(instance, draft)
        if response.status != 500:
            return response
        await asyncio.sleep(0.2)
        if number > 2:
            instance.process.advance_clock()  # nothing that was sent can be executed any more
    raise AssertionError(response.text)


async def test_change_while_another_process_is_paused(
    postgres: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The simulation pauses at any step of these and other requests."""
    first_name, second_name = "start", "remove"
    async with open_pair(tmp_path, postgres, lists=False) as pair:
        for number, stage, seconds in SIGNAL_POINTS:
            draft = await prepare_batch(pair, first_name)
            stage_signal = SignalAtStage(pair.first.process, number, stage, signal.SIGSTOP, seconds)
            first_task = await _request_and_signal(pair, draft, first_name, stage_signal)
            paused_at = time.monotonic()
            second_task = asyncio.ensure_future(
                _request_until_answered(pair.second, SECOND_REQUESTS[second_name], draft)
            )
            await asyncio.wait([second_task], timeout=0.8)
            if second_task.done():
                await draft.note_superseded()
            pair.first.process.kill(signal.SIGCONT)
            pause_seconds, first_response = time.monotonic() - paused_at, await first_task
            # On a busy machine the pause may outlast the lease, so that the other takes it over.
            if first_response.status == 500 and pause_seconds > LEASE_TTL_SECONDS / 2:
                first_response = await _request_until_answered(
                    pair.first, FIRST_REQUESTS[first_name], draft
                )
            check_response(draft, FIRST_REQUESTS[first_name], first_response)
            check_response(draft, SECOND_REQUESTS[second_name], await second_task)
            await check_payout(draft)


async def test_change_while_a_signed_write_is_paused(
    postgres: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The pause is timed, because no earlier upstream call precedes a signed write."""
    async with open_pair(tmp_path, postgres, lists=False) as pair:
        for first_name, milliseconds in itertools.product(SIGNED_REQUESTS, range(0, 14, 3)):
            draft = await prepare_batch(pair, first_name)
            first_task = asyncio.ensure_future(FIRST_REQUESTS[first_name].send(pair.first, draft))
            await asyncio.sleep(milliseconds / 1000)
            pair.first.process.kill(signal.SIGSTOP)
            second_task = asyncio.ensure_future(
                _request_until_answered(pair.second, SECOND_REQUESTS["remove"], draft)
            )
            await asyncio.wait([second_task], timeout=0.5)
            if second_task.done():
                await draft.note_superseded()
            pair.first.process.kill(signal.SIGCONT)
            check_response(draft, FIRST_REQUESTS[first_name], await first_task)
            check_response(draft, SECOND_REQUESTS["remove"], await second_task)
            await check_payout(draft)


@pytest.mark.parametrize(
    ("state", "first_name", "second_name"),
    [("postgres", "start", "remove"), ("sqlite", "quote", "delete")],
    indirect=["state"],
)
async def test_change_after_another_process_was_killed(
    state: State, first_name: str, second_name: str, tmp_path: Path
) -> None:
    async with open_pair(tmp_path, state, lists=True) as pair:
        for number, stage, seconds in _iterate_kill_points():
            draft = await prepare_batch(pair, first_name)
            stage_signal = SignalAtStage(pair.first.process, number, stage, signal.SIGKILL, seconds)
            first_task = await _request_and_signal(pair, draft, first_name, stage_signal)
            assert (await first_task).status in (200, 500)
            if pair.is_one:
                await pair.restart()
            check_response(
                draft,
                SECOND_REQUESTS[second_name],
                await _request_until_answered(pair.second, SECOND_REQUESTS[second_name], draft),
            )
            await draft.note_superseded()
            check_response(
                draft,
                FIRST_REQUESTS[first_name],
                await _request_until_answered(pair.second, FIRST_REQUESTS[first_name], draft),
            )
            await check_payout(draft)
            if not pair.is_one:
                await pair.restart()


def _iterate_kill_points() -> Iterator[tuple[int, Stage, float]]:
    yield from ((0, "answered", 0.004), (1, "seen", 0.0), (1, "answered", 0.008))


async def test_payment_is_not_added_to_a_draft_without_its_client(
    postgres: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Its client, which has seen that it is not there, may have added it in another request."""
    async with open_pair(tmp_path, postgres, lists=False) as pair:
        draft = await prepare_batch(pair, "start")
        stage_signal = SignalAtStage(pair.first.process, 0, "seen", signal.SIGKILL)
        add_task = await _request_and_signal(pair, draft, "add", stage_signal)
        assert (await add_task).status == 500

        async def is_closed() -> bool:
            return not (await count_operations_by_state(pair.settings)).keys() & {
                "running",
                "unsettled",
            }

        await wait_until_async(is_closed)
        await check_payout(draft)


async def test_batch_is_not_locked_by_a_start_that_was_killed_before_it_was_sent(
    sqlite: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The batch has another id at the service than for its legacy clients."""
    async with open_pair(tmp_path, sqlite, lists=False) as pair:
        draft = await prepare_batch(pair, "signed start")
        await pair.first.process.stop()
        pair.first.process = await pair.forker.start(pair.settings, tmp_path, kill_point=1)
        armed_file = tmp_path / "armed"
        armed_file.touch()
        response = await FIRST_REQUESTS["signed start"].send(pair.first, draft)
        assert response.text == "no answer"
        armed_file.unlink()
        await pair.restart()
        removal = SECOND_REQUESTS["remove"]
        check_response(draft, removal, await _request_until_answered(pair.first, removal, draft))
        await check_payout(draft)


async def test_operation_finished_by_another_process_is_replayed(
    postgres: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    """No process is sending the answer: a retry must not wait for one."""
    async with open_pair(tmp_path, postgres, lists=True) as pair:
        draft = await prepare_batch(pair, "add")
        stage_signal = SignalAtStage(pair.first.process, 2, "seen", signal.SIGKILL)
        quote_task = await _request_and_signal(pair, draft, "quote", stage_signal)
        assert (await quote_task).status == 500
        request_count = len(pair.recorder.requests)

        async def is_finished() -> bool:
            return (await count_operations_by_state(pair.settings))["done"] == 1

        await wait_until_async(is_finished)
        await pair.restart()
        response = await FIRST_REQUESTS["quote"].send(pair.first, draft)
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, "true"), (
            response.text
        )
        assert not [entry for entry in pair.recorder.requests[request_count:] if entry.is_write]
