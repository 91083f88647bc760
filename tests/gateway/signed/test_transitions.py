"""Batch state transitions for signed writes: what the ledger permits and records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.auth.signing import Credentials
from gateway.signed_api.transitions import SignedWrite, SignedWriteGuard, WrongBatchStatus
from gateway.storage import Ledger, Store, StoreUnavailable, Tenant
from gateway.storage.freezes import freeze
from gateway.storage.restore_marks import Mark, flag_restored
from gateway.upstream.send_attempt import Fence
from mappings import batch_locks
from mappings.effects import CompareAndSet
from mappings.failures import Halted, Unknown, Unreachable
from tests.house import settings_for
from tests.parts import open_parts
from tests.processes import free_port

ACME, BOLT = Tenant("acme", "sandbox"), Tenant("bolt", "sandbox")
PAIR = Credentials("ACCESS", "a secret")
START = "/v1/batches/B-1/start-processing"
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)
SENT = {"phase": "sent", "version": 3, "upstream": "B-1", "currency": "USD"}


@dataclass
class Passed:
    status: int


@dataclass
class Service:
    """A fake upstream that counts calls and answers with the given statuses."""

    ledger: Ledger
    answers: list[int | Exception] = field(default_factory=list)
    sent: int = 0
    seen: dict[str, Any] = field(default_factory=dict)
    """What the ledger knew of the batch when it left."""

    async def __call__(self, turn: Fence | None) -> Passed:
        self.sent += 1
        self.seen = await facts(self.ledger)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return Passed(answer)


@dataclass
class Gate:
    """Transitions over their own state."""

    store: Store
    ledger: Ledger
    transitions: SignedWriteGuard
    service: Service
    ahead: timedelta = timedelta()
    """Of NOW."""

    async def send(self, written: SignedWrite, *answers: int | Exception) -> int:
        self.service.answers = list(answers)
        return (await self.transitions.send(written, self.service)).status


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gate]:
    # Nothing listens there, so the journal's own reads fail.
    upstream = {"timeout_seconds": 1}
    settings = settings_for(tmp_path, f"http://127.0.0.1:{free_port()}", upstream=upstream)
    async with open_parts(settings) as parts:
        rows = parts.journal.rows
        transitions = SignedWriteGuard(parts.ledger, rows, parts.once, lambda: NOW + gate.ahead, 1.0)
        gate = Gate(parts.store, parts.ledger, transitions, Service(parts.ledger))
        yield gate


@pytest.fixture
def ledger(gate: Gate) -> Ledger:
    return gate.ledger


def write(target: str = START, owner: Tenant | None = ACME) -> SignedWrite:
    stamp = int(NOW.timestamp())
    return SignedWrite(owner, PAIR if owner else None, "sandbox", target, stamp, "a request")


async def facts(ledger: Ledger, batch: str = "B-1", owner: Tenant = ACME) -> dict[str, Any]:
    return await ledger.recall(owner, "batch", batch)


# Superseded batches.

WRITES = [
    START,
    "/v1/batches/B-1",
    "/v1/batches/B-1/",
    "/v1/batches/B-1/payments",
    "/v1/batches/B-1/payments/P-1",
    "/v1/batches/B-1/generate-quote?x=1",
    "/v1/batch/B-1/start-processing",
    "/v1/batch/B-1/summary",
    "/v1//batches//B-1/start-processing/",
    "/v1/Batches/%42-1/Start-Processing",
    "/v1/batches;x/B-1;y/start-processing;z",
]


@pytest.mark.parametrize("target", WRITES)
async def test_an_abandoned_batch_is_not_written_to_however_it_is_spelled(
    gate: Gate, ledger: Ledger, target: str
) -> None:
    await ledger.record(ACME, "alias", "B-1", {"abandoned": True})
    with pytest.raises(WrongBatchStatus):
        await gate.send(write(target))
    assert not gate.service.sent
    await ledger.record(ACME, "alias", "B-1", {"abandoned": None})
    assert await gate.send(write(target)) == 200


async def _supersede(ledger: Ledger) -> None:
    """Record an edit of a batch at a service that has no edit operation."""
    left = CompareAndSet("alias", "B-1", {"abandoned": True})
    draft = {"phase": "draft", "upstream": None, "version": 4, "abandoned": ["B-1"]}
    await ledger.record_all(ACME, [CompareAndSet("batch", "B-1", draft, linked=(left,))])


@pytest.mark.parametrize("action", ["start-processing", "generate-quote", "payments", ""])
async def test_a_batch_that_is_superseded_between_any_read_and_the_record_is_not_written_to(
    gate: Gate, ledger: Ledger, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Ledger.recall
    number = reads = 0

    async def recall(self: Ledger, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002
        nonlocal reads
        facts = await plain(self, owner, kind, id)
        reads += 1
        if reads == number and not gate.service.sent:
            await _supersede(ledger)
        return facts

    monkeypatch.setattr(Ledger, "recall", recall)
    while number <= reads:  # the last read is that of the fake upstream
        await ledger.record(ACME, "batch", "B-1", {**SENT, "abandoned": None})
        await ledger.record(ACME, "alias", "B-1", {"abandoned": None})
        number, reads, gate.service.sent = number + 1, 0, 0
        its = replace(write(f"/v1/batches/B-1/{action}"), request_id=f"request {number}")
        with suppress(WrongBatchStatus):
            await gate.send(its)
        was_superseded = bool((await plain(ledger, ACME, "alias", "B-1")).get("abandoned"))
        assert gate.service.sent == (not was_superseded), number
    assert number > 2


async def test_a_batch_that_took_another_s_place_and_was_left_itself_is_abandoned(
    gate: Gate, ledger: Ledger
) -> None:
    await ledger.record(ACME, "batch", "B-0", {**SENT, "upstream": "B-2"})
    await ledger.record(ACME, "alias", "B-1", {"id": "B-0", "abandoned": True})
    with pytest.raises(WrongBatchStatus):
        await gate.send(write())
    assert (await facts(ledger, "B-0"))["phase"] == "sent"


async def test_another_merchant_s_ledger_says_nothing(gate: Gate, ledger: Ledger) -> None:
    await ledger.record(BOLT, "alias", "B-1", {"abandoned": True})
    await ledger.record(BOLT, "batch", "B-1", {**SENT, "phase": "draft"})
    assert await gate.send(write()) == 200


@pytest.mark.parametrize(
    ("owner", "is_refused"), [(ACME, True), (BOLT, True), (Tenant("acme", "live"), False)]
)
async def test_for_a_key_that_is_not_held_here_anybody_s_abandoned_batch_of_its_environment_is(
    gate: Gate, ledger: Ledger, owner: Tenant, *, is_refused: bool
) -> None:
    await ledger.record(owner, "alias", "B-1", {"abandoned": True})
    await ledger.record(owner, "alias", "B-2", {"id": "B-0"})
    if is_refused:
        with pytest.raises(WrongBatchStatus):
            await gate.send(write(owner=None))
    else:
        assert await gate.send(write(owner=None)) == 200
    assert await gate.send(write("/v1/batches/B-2/start-processing", owner=None)) == 200


async def test_a_start_with_a_key_that_is_not_held_takes_nothing_in_the_ledger(
    gate: Gate, ledger: Ledger
) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)
    assert await gate.send(write(owner=None)) == 200
    assert gate.service.seen == await facts(ledger) == SENT


OTHERS = [
    "/v1/batches",
    "/v1/recipients/B-1/start-processing",
    "/v1/profile/batches/B-1/start-processing",
    "/v1/batches/B-1/payments",
    "/v1/batches/B-1/start-processing/now",
    "/v1/batches/B-1?x=/start-processing",
]


@pytest.mark.parametrize("target", OTHERS)
async def test_any_other_write_takes_nothing(gate: Gate, ledger: Ledger, target: str) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)
    assert await gate.send(write(target), 500) == 500
    with pytest.raises(Unreachable):
        await gate.send(write(target), Unreachable("refused"))
    assert gate.service.seen == await facts(ledger) == SENT


# Changes in progress.


async def changes(gate: Gate) -> tuple[int, bool]:
    """Return how many changes are in progress, and whether one is lost."""
    signed, now = await gate.ledger.recall(ACME, batch_locks.SIGNED_CHANGES_KIND, "B-1"), NOW + gate.ahead
    return len(
        batch_locks.list_active_signed_changes(signed, now)
    ), not batch_locks.has_no_lost_signed_change(now, signed)


async def test_a_change_that_is_lost_is_over_in_its_time_though_others_come_after_it(
    gate: Gate,
) -> None:
    adds = write("/v1/batches/B-1/payments")
    with pytest.raises(Unknown):
        await gate.send(adds, Unknown("lost"))
    assert await changes(gate) == (0, True)
    for seconds in (40, 80):
        gate.ahead = timedelta(seconds=seconds)
        assert await gate.send(adds) == 200
        assert await changes(gate) == (0, True)
    gate.ahead = timedelta(seconds=batch_locks.SIGNED_CHANGE_TTL_SECONDS)
    assert await changes(gate) == (0, False)
    assert await gate.send(adds, 502) == 502
    assert await changes(gate) == (0, True)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_a_change_that_is_cut_off_may_be_carried_out_yet(
    gate: Gate, answer: BaseException
) -> None:
    async def cut_off(_turn: Fence | None) -> Passed:
        raise answer

    with pytest.raises(type(answer)):
        await gate.transitions.send(write("/v1/batches/B-1/payments"), cut_off)
    assert await changes(gate) == (0, True)


async def test_a_change_that_never_left_is_over(gate: Gate) -> None:
    with pytest.raises(Unreachable):
        await gate.send(write("/v1/batches/B-1/payments"), Unreachable("no connection"))
    assert await changes(gate) == (0, False)


async def test_a_change_that_ends_when_it_is_taken_for_over_ends_no_other(gate: Gate) -> None:
    adds, ends = write("/v1/batches/B-1/payments"), [asyncio.Event(), asyncio.Event()]

    async def begun(end: asyncio.Event) -> asyncio.Future[Passed]:
        left = asyncio.Event()

        async def long(turn: Fence | None) -> Passed:
            left.set()
            await end.wait()
            return await gate.service(turn)

        sending = asyncio.ensure_future(gate.transitions.send(adds, long))
        await left.wait()
        return sending

    first = await begun(ends[0])
    gate.ahead = timedelta(seconds=batch_locks.SIGNED_CHANGE_TTL_SECONDS)
    assert await changes(gate) == (0, False)
    second = await begun(ends[1])
    ends[0].set()
    await first
    assert await changes(gate) == (1, False)
    ends[1].set()
    await second
    assert await changes(gate) == (0, False)


class Counting(Ledger):
    """A ledger whose reads are outdated when they return."""

    recorded = 0

    async def recall(self, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - as it is called
        facts = await super().recall(owner, kind, id)
        await asyncio.sleep(0.01)
        return facts

    async def record_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        self.recorded += 1
        await super().record_all(owner, records)


async def test_changes_that_come_at_a_time_do_not_keep_each_other_out(tmp_path: Path) -> None:
    async with open_parts(settings_for(tmp_path, f"http://127.0.0.1:{free_port()}")) as parts:
        ledger, rows = Counting(parts.store), parts.journal.rows
        transitions, service = (
            SignedWriteGuard(ledger, rows, parts.once, lambda: NOW, 30.0),
            Service(ledger),
        )
        adds = write("/v1/batches/B-1/payments")
        await asyncio.gather(*(transitions.send(adds, service) for _ in range(20)))
        assert (service.sent, ledger.recorded) == (20, 40), (
            "one record at start and one at end of each change, without retries"
        )


class Hanging(Ledger):
    """A ledger whose state stops answering when ``hangs`` is set."""

    hangs = False

    async def record_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await super().record_all(owner, records)


async def test_an_answer_does_not_wait_for_a_state_that_hangs(tmp_path: Path) -> None:
    """The client would give up, and add the payment again."""
    async with open_parts(settings_for(tmp_path, f"http://127.0.0.1:{free_port()}")) as parts:
        ledger, rows = Hanging(parts.store), parts.journal.rows
        transitions = SignedWriteGuard(ledger, rows, parts.once, lambda: NOW, 1.0)

        async def hangs(turn: Fence | None) -> Passed:
            ledger.hangs = True
            return Passed(200)

        async with asyncio.timeout(20):
            passed = await transitions.send(write("/v1/batches/B-1/payments"), hangs)
        assert passed.status == 200


# Freezes.


@pytest.mark.parametrize("scope", [Tenant("", ""), Tenant("acme", ""), Tenant("", "sandbox"), ACME])
@pytest.mark.parametrize("target", [START, *OTHERS])
async def test_what_an_operator_froze_is_not_sent(gate: Gate, scope: Tenant, target: str) -> None:
    await freeze(gate.store, scope)
    with pytest.raises(Halted):
        await gate.send(write(target))
    assert not gate.service.sent
    assert await facts(gate.ledger) == {}


@pytest.mark.parametrize(("scope", "is_refused"), [(Tenant("", "sandbox"), True), (ACME, False)])
async def test_what_nobody_here_sends_is_frozen_with_its_environment(
    gate: Gate, scope: Tenant, *, is_refused: bool
) -> None:
    await freeze(gate.store, scope)
    if is_refused:
        with pytest.raises(Halted):
            await gate.send(write(owner=None))
    else:
        assert await gate.send(write(owner=None)) == 200


async def test_what_nobody_here_sends_starts_nothing_on_a_restored_state(gate: Gate) -> None:
    await flag_restored(gate.store, Mark(0, 1))
    with pytest.raises(Halted):
        await gate.send(write(owner=None))
    assert await gate.send(write(OTHERS[0], owner=None)) == 200


# Starts.


async def test_a_start_takes_the_batch_and_is_kept_once_it_is_answered(
    gate: Gate, ledger: Ledger
) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)
    assert await gate.send(write()) == 200
    assert gate.service.seen == {**SENT, "phase": "starting", "since": NOW.isoformat()}
    assert await facts(ledger) == {**SENT, "version": 4, "started": "2026-11-20T12:30:15.123Z"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 406, 429])
async def test_a_refused_start_leaves_the_batch_as_it_was(
    gate: Gate, ledger: Ledger, status: int
) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)
    assert await gate.send(write(), status) == status
    assert await facts(ledger) == SENT
    with pytest.raises(Unreachable):
        await gate.send(write(), Unreachable("refused"))
    assert await facts(ledger) == SENT


@pytest.mark.parametrize("status", [302, 500, 502, 504, 524])
async def test_a_start_of_unknown_outcome_keeps_the_batch_taken(
    gate: Gate, ledger: Ledger, status: int
) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)
    assert await gate.send(write(), status) == status
    with pytest.raises(Unknown):
        await gate.send(replace(write(), request_id="another"))
    assert gate.service.sent == 1
    assert (await facts(ledger))["phase"] == "starting"


@pytest.mark.parametrize("phase", ["draft", "deleted", "starting"])
async def test_a_batch_in_any_other_phase_is_not_started(
    gate: Gate, ledger: Ledger, phase: str
) -> None:
    since = None if phase in ("draft", "deleted") else NOW.isoformat()
    await ledger.record(ACME, "batch", "B-1", {**SENT, "phase": phase, "since": since})
    with pytest.raises(WrongBatchStatus):
        await gate.send(write())
    assert (await facts(ledger))["phase"] == phase
    assert not gate.service.sent


@pytest.mark.parametrize("phase", ["editing", "quoting", "making", "deleting"])
async def test_a_start_waits_for_an_edit_and_is_not_refused_for_one_that_takes_too_long(
    gate: Gate, ledger: Ledger, phase: str
) -> None:
    held = {**SENT, "phase": phase, "since": NOW.isoformat()}
    await ledger.record(ACME, "batch", "B-1", held)
    starting = asyncio.ensure_future(gate.send(write()))
    await asyncio.sleep(0.1)
    await ledger.record(ACME, "batch", "B-1", {"phase": "sent", "since": None})
    assert await starting == 200
    await ledger.record(ACME, "batch", "B-1", held)
    with pytest.raises(Halted):
        await gate.send(replace(write(), request_id="another"))
    assert (await facts(ledger))["phase"] == phase
    assert gate.service.sent == 1


async def test_a_batch_is_taken_by_the_id_that_it_had_first(gate: Gate, ledger: Ledger) -> None:
    await ledger.record(ACME, "batch", "B-0", SENT)
    await ledger.record(ACME, "alias", "B-1", {"id": "B-0"})
    assert await gate.send(write()) == 200
    assert (await facts(ledger, "B-0"))["version"] == 4
    assert await facts(ledger, "B-1") == {}


async def test_the_place_of_a_batch_that_another_has_taken_meanwhile_is_not_started(
    gate: Gate, ledger: Ledger
) -> None:
    await ledger.record(ACME, "batch", "B-1", {**SENT, "upstream": "B-2"})
    with pytest.raises(WrongBatchStatus):
        await gate.send(write())
    assert (await facts(ledger))["phase"] == "sent"


async def test_a_batch_made_elsewhere_is_known_once_it_is_started_and_forgotten_if_it_is_not(
    gate: Gate, ledger: Ledger
) -> None:
    assert await gate.send(write(), 400) == 400
    assert gate.service.seen["phase"] == "starting"
    assert await facts(ledger) == {}
    assert await gate.send(write()) == 200
    assert await facts(ledger) == {
        "phase": "sent",
        "upstream": "B-1",
        "version": 1,
        "elsewhere": True,
        "started": "2026-11-20T12:30:15.123Z",
    }


# Without a database.


async def test_without_the_ledger_no_write_goes_on(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
    for target in (START, "/v1/batches/B-1/payments", "/v1/recipients/R-1"):
        with pytest.raises(StoreUnavailable):
            await gate.send(write(target))
    assert not gate.service.sent


async def test_an_answer_is_given_though_the_ledger_cannot_be_told_of_it(
    gate: Gate, ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.record(ACME, "batch", "B-1", SENT)

    async def breaks(turn: Fence | None) -> Passed:
        (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
        return Passed(200)

    with capture_logs() as logged:
        assert (await gate.transitions.send(write(), breaks)).status == 200
    assert "database_unavailable" in [line["event"] for line in logged]
