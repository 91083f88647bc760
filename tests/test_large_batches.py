"""A batch too large to be worked on in one go: others are served meanwhile, and its bytes are the same."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from sqlalchemy import select

from gateway.config.settings import State
from gateway.payloads import json_codec, worker_thread
from gateway.simulator import Service, Switches
from gateway.storage import Ledger, Tenant, open_store
from gateway.storage.id_rows import keep
from gateway.storage.tables import pieces
from gateway.writes import settling
from gateway.writes.journal import Journal, OperationExecution
from mappings.lazy_sequences import CompressedSequence
from tests.bench import big_batch
from tests.bench.big_service import BigConnection
from tests.gateway.compare.towns import open_town as open_service
from tests.gateway.store.conftest import database, postgres, sqlite  # noqa: F401 - fixtures
from tests.house import KEY, Got, House, open_house
from tests.operating import eventually
from tests.payday import make_batch, make_recipient, open_town
from tests.states import fetch
from tests.test_unknown_outcomes import town
from tests.valley import NAME, open_valley

COUNT = 2000
LONG_AS_TEXT_ALONE = 400
"""So many that nothing is worked on by slices, and the answer's text is long all the same."""
RECIPIENT = "/v1/recipients/R-BENCHABC00000001"
WHEN = re.compile(rf'"(createdAt|updatedAt)":"(?!{re.escape(big_batch.MADE)}")[^"]*"')
ID = re.compile(r"\b[BP]-[A-Za-z0-9]{6,}\b")


class Service2000(BigConnection):
    """What it was sent, and once how it refused."""

    bodies: list[bytes]
    refuses: dict[str, Any] | None
    refused: bytes

    def answer(self, head: bytes, body: bytes) -> bytes:
        type(self).bodies.append(body)
        if self.refuses and head.startswith(self.refused):
            return json.dumps(self.refuses).encode()
        if b"/generate-quote " in head:
            return b'{"ok":true}'
        return super().answer(head, body)


@asynccontextmanager
async def service(
    refuses: dict[str, Any] | None = None, refused: bytes = b"POST /v1/batches "
) -> AsyncIterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Here(Service2000):
        counts = []  # noqa: RUF012 - each service has its own
        barely = (1,)  # so that its summary is read

    Here.bodies, Here.refuses, Here.refused = bodies, refuses, refused
    server = await asyncio.get_running_loop().create_server(Here, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
    finally:
        server.close()


def without_names(text: str) -> str:
    """Stand-ins are made with a key of the house's own; and without times that are the house's own."""
    names: dict[str, str] = {}
    undated = WHEN.sub(r'"\1":"now"', text)
    return ID.sub(lambda found: names.setdefault(found[0], f"id {len(names)}"), undated)


async def there_and_back(
    folder: Path, data: bytes, **sections: Any
) -> tuple[list[str], list[bytes]]:
    """What a client is told, and what the service is sent, of a create and a reading."""
    folder.mkdir()
    async with service() as (url, bodies), open_house(folder, url, **sections) as house:
        made = await house.ask("POST", "/v1/batches", data=data)
        told = [made]
        if made.status == 200:
            told.append(await house.ask("GET", f"/v1/batches/{made.body['batch']['id']}"))
            told.append(
                await house.ask("POST", f"/v1/batches/{made.body['batch']['id']}/generate-quote")
            )
        return [f"{one.status} {without_names(one.text)}" for one in told], bodies


async def edited(folder: Path, **sections: Any) -> tuple[list[str], list[bytes]]:
    """The same of changes: of each payment, to a draft, of that, and of what is made of it."""
    folder.mkdir()
    async with service() as (url, bodies), open_house(folder, url, **sections) as house:
        made = await house.ask("POST", "/v1/batches", data=big_batch.body(COUNT, 1))
        path = f"/v1/batches/{made.body['batch']['id']}"
        whole = await house.ask("GET", path)
        ids = [one["id"] for one in whole.body["batch"]["payments"]["payments"]]
        told = [whole]
        for data in (
            big_batch.updates(ids, "alike"),
            big_batch.updates([*reversed(ids[:-1]), "P-1"], "alike"),
            big_batch.removal(ids[7]),
            big_batch.additions(COUNT, "alike"),
            big_batch.updates(ids[:2], "alike"),
        ):
            told += [await house.ask("PATCH", path, data=data), await house.ask("GET", path)]
        told += [await house.ask("POST", f"{path}/generate-quote"), await house.ask("GET", path)]
    return [f"{one.status} {without_names(one.text)}" for one in told], bodies


async def test_changes_of_a_large_batch_are_the_same_by_slices_and_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_slices = await edited(tmp_path / "slices")
    monkeypatch.setattr(json_codec, "LARGE", 2**40)
    at_once = await edited(tmp_path / "at once")
    assert by_slices[0] == at_once[0]
    assert by_slices[1] == at_once[1]
    assert [one[:3] for one in by_slices[0]] == ["200"] * 3 + ["406"] + ["200"] * 9
    drafted = json.loads(by_slices[0][8].partition(" ")[2])["batch"]
    assert drafted["totalPayments"] == len(drafted["payments"]["payments"]) == 2 * COUNT - 1


def with_payments(**changed: Any) -> bytes:
    """A large body in which some payments are otherwise: ``_3`` is the fourth."""
    body = json.loads(big_batch.body(COUNT, 1))
    for place, payment in changed.items():
        body["payments"][int(place[1:])] = payment
    return json.dumps(body, ensure_ascii=False).encode()


LARGE_ONES = [
    pytest.param(big_batch.body(COUNT, 1), id="all good"),
    pytest.param(
        with_payments(
            _0={"recipient": {"id": "R-1"}, "sourceAmount": "1.5"},
            _700={"recipient": {}, "targetAmount": "1.00"},
            _1999={"recipient": {"id": "B-1"}, "sourceAmount": 3, "targetAmount": "1.00"},
        ),
        id="three wrong ones",
    ),
    pytest.param(with_payments(_5="no object", _1900={"recipient": "x"}), id="wrong shapes"),
    pytest.param(with_payments(_9={"sourceCurrency": "EUR"}), id="another currency"),
    pytest.param(with_payments(_9={"memo": "é王 \u2028"}) + b" ", id="no recipient"),
    pytest.param(with_payments(_1500={"a": 1})[:-20], id="cut off"),
    pytest.param(with_payments()[:-1] + b',"payments":[]}', id="a key twice"),
]


@pytest.mark.parametrize("data", LARGE_ONES)
async def test_a_large_batch_is_the_same_by_slices_and_in_one_go(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(data) > json_codec.LARGE
    by_slices = await there_and_back(tmp_path / "slices", data)
    monkeypatch.setattr(json_codec, "LARGE", 2**40)
    at_once = await there_and_back(tmp_path / "at once", data)
    assert by_slices[0] == at_once[0]
    assert by_slices[1] == at_once[1]
    if data == big_batch.body(COUNT, 1):
        assert by_slices[0][0].startswith('200 {"ok":true,"batch":{"id":')
        read = json.loads(by_slices[0][1].partition(" ")[2])["batch"]
        assert read["payments"]["meta"]["records"] == len(read["payments"]["payments"]) == COUNT


async def test_a_refusal_of_a_large_batch_names_what_its_client_sent(tmp_path: Path) -> None:
    wrong = {
        "code": "invalid_field",
        "message": "payments[1500].amount is odd",
        "field": "payments[1500].amount",
    }
    async with (
        service({"ok": False, "errors": [wrong]}) as (url, _bodies),
        open_house(tmp_path, url) as house,
    ):
        got = await house.ask("POST", "/v1/batches", data=big_batch.body(COUNT, 1))
    assert got.status == 406
    assert got.body["errors"] == [
        {
            "code": "invalid_field",
            "message": "payments[1500].sourceAmount is odd",
            "field": "payments[1500].sourceAmount",
        }
    ]


async def test_a_refusal_of_a_large_change_spells_ids_as_its_client_did(tmp_path: Path) -> None:
    known = "P-BENCHABCDEFGH00000007"
    odd = {"code": "invalid_field", "message": f"{known} is odd"}
    refused = service({"ok": False, "errors": [odd]}, b"PATCH ")
    async with refused as (url, bodies), open_house(tmp_path, url) as house:
        path, ids = await made_and_read(house)
        async with open_store(house.settings.state) as store:
            # By which an answer would call it that is not about what its client called otherwise.
            owner = Tenant(KEY["merchant"], KEY["environment"])
            await keep(store, owner, {"P-OLD": known}, imported=True)
        got = await house.ask("PATCH", path, data=big_batch.updates(ids, "alike"))
    assert known.encode() in bodies[-1]
    assert got.status == 406
    assert [one["message"] for one in got.body["errors"]] == [f"{ids[7]} is odd"]


async def test_a_payment_that_a_large_change_names_twice_is_told_whichever_its_name(
    tmp_path: Path,
) -> None:
    async with service() as (url, _bodies), open_house(tmp_path, url) as house:
        path, ids = await made_and_read(house)
        named = [*reversed(ids), "P-BENCHABCDEFGH00000007", ids[9], "P-none"]
        got = await house.ask("PATCH", path, data=big_batch.updates(named, "alike"))
    assert got.status == 406
    told = [(one["field"], one["message"].partition(" ")[2]) for one in got.body["errors"]]
    assert told == [
        (f"update_payments[{COUNT}].id", "is named more than once."),
        (f"update_payments[{COUNT + 1}].id", "is named more than once."),
        (f"update_payments[{COUNT + 2}].id", "is not a payment of this batch."),
    ]


async def made_and_read(house: House) -> tuple[str, list[str]]:
    """A large batch's path, and the ids by which clients know its payments."""
    made = await house.ask("POST", "/v1/batches", data=big_batch.body(COUNT, 1))
    path = f"/v1/batches/{made.body['batch']['id']}"
    shown = (await house.ask("GET", path)).body["batch"]["payments"]["payments"]
    return path, [one["id"] for one in shown]


class OneForEachAnswer(ThreadPoolExecutor):
    """Begins a work only when somebody else was answered since the last one was begun."""

    def __init__(self) -> None:
        super().__init__(1)
        self.answered = threading.Semaphore(0)
        self.begun = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:  # type: ignore[override]
        def patiently() -> Any:
            assert self.answered.acquire(timeout=30), "nobody was served meanwhile"
            self.begun += 1
            return work(*args, **named)

        return super().submit(patiently)


async def test_others_are_served_before_every_part_of_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = OneForEachAnswer()
    monkeypatch.setattr(worker_thread, "_thread", patient)

    async def others(house: House) -> None:
        while True:
            assert (await house.ask("GET", RECIPIENT)).status == 200
            patient.answered.release()

    async with service() as (url, _bodies), open_house(tmp_path, url) as house:
        asking = asyncio.ensure_future(others(house))
        made = await house.ask("POST", "/v1/batches", data=big_batch.body(COUNT, 1))
        assert made.status == 200, made.text
        written, patient.begun = patient.begun, 0
        read = await house.ask("GET", f"/v1/batches/{made.body['batch']['id']}")
        assert read.body["batch"]["totalPayments"] == COUNT
        asking.cancel()
    patient.shutdown()
    # Reading, checking, digests, every step of the flow, writing, the journal's texts; and back.
    assert written > 15
    assert patient.begun > 5


async def test_a_client_that_goes_while_its_batch_is_worked_on_pays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = OneForEachAnswer()
    monkeypatch.setattr(worker_thread, "_thread", patient)
    data = big_batch.body(COUNT, 1)
    async with service() as (url, bodies), open_house(tmp_path, url) as house:
        sending = asyncio.ensure_future(house.ask("POST", "/v1/batches", data=data))
        while patient.begun < 4:
            assert (await house.ask("GET", RECIPIENT)).status == 200
            patient.answered.release()
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        patient.answered.release(10_000)
        again = await house.ask("POST", "/v1/batches", data=data)
        assert again.status == 200, again.text
        assert again.body["batch"]["totalPayments"] == COUNT
    patient.shutdown()
    assert sum(b'"amount"' in body for body in bodies) == 1


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest) -> State:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, State)
    return found


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """In which rows are unpacked."""
    unpack, threads = CompressedSequence.read_slice, set[int]()

    def noted(self: CompressedSequence, number: int) -> list[Any]:
        threads.add(threading.get_ident())
        return unpack(self, number)

    monkeypatch.setattr(CompressedSequence, "read_slice", noted)
    return threads


async def test_where_others_wait_no_slice_of_a_change_is_unpacked(
    kept: State, tmp_path: Path, threads: set[int]
) -> None:
    """With as many aliases in one transaction as a database has no locks for."""
    where = {"url": kept.url, "encryption_key_file": kept.encryption_key_file}
    told, _bodies = await edited(tmp_path / "house", state=where)
    assert sum(one.startswith("200") for one in told) == len(told) - 1
    assert threads
    assert threading.get_ident() not in threads


async def test_where_others_wait_no_slice_is_unpacked(
    kept: State, tmp_path: Path, threads: set[int]
) -> None:
    where = {"url": kept.url, "encryption_key_file": kept.encryption_key_file}
    told, _bodies = await there_and_back(tmp_path / "house", big_batch.body(COUNT, 1), state=where)
    assert [one[:3] for one in told] == ["200"] * 3
    assert threads
    assert threading.get_ident() not in threads


async def test_no_transaction_waits_until_a_change_is_worked_out(
    kept: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, unpacked = list[str](), list[str]()
    merge, unpack = Ledger.merge, CompressedSequence.read_slice

    def noted(self: CompressedSequence, number: int) -> list[Any]:
        unpacked.extend(transactions)
        return unpack(self, number)

    async def merged(self: Ledger, *arguments: Any) -> None:
        transactions.append("a transaction")
        await merge(self, *arguments)
        transactions.pop()

    where = {"url": kept.url, "encryption_key_file": kept.encryption_key_file}
    async with service() as (url, _bodies), open_house(tmp_path, url, state=where) as house:
        path, ids = await made_and_read(house)
        monkeypatch.setattr(CompressedSequence, "read_slice", noted)
        monkeypatch.setattr(Ledger, "merge", merged)
        got = await house.ask("PATCH", path, data=big_batch.updates(ids, "alike"))
    assert got.status == 200
    assert unpacked == []


async def test_what_a_large_request_was_is_forgotten_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses: list[Callable[[], OperationExecution | None]] = []

    def kept_in_view(self: Journal, *its: Any) -> OperationExecution:
        made = course(self, *its)
        courses.append(ref(made))
        return made

    course = Journal.course
    monkeypatch.setattr(Journal, "course", kept_in_view)
    async with service() as (url, _bodies), open_house(tmp_path, url) as house:
        await made_and_read(house)  # and with it the house's connection to the service was opened
        del courses[1:]

        async def is_gone() -> bool:
            await house.ask("GET", RECIPIENT)
            gc.collect()
            return courses[0]() is None

        await eventually(is_gone)


async def test_how_far_a_large_request_is_stands_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with service() as (url, _bodies), open_house(tmp_path, url) as house:
        headers = {"X-Request-Id": "large-1"}
        data = big_batch.body(COUNT, 1)
        made = await house.ask("POST", "/v1/batches", data=data, headers=headers)
        assert made.status == 200
        await house.ask("GET", f"/v1/batches/{made.body['batch']['id']}", headers=headers)
    written = capsys.readouterr()
    said = written.out + written.err
    steps = re.findall(
        r"step['\"=: ]+(\w+)", "\n".join(line for line in said.splitlines() if "large" in line)
    )
    assert steps == [
        "translating_request",
        "calling_service",
        *["receiving_response"] * 3,
        "sending_response",
    ]
    assert "Royalties" not in said


async def lost(here: Any, data: bytes) -> Got:
    here.breaks("POST", "/v1/batches", close="after")
    first: Got = await here.house.ask("POST", "/v1/batches", data=data)
    assert first.status == 500
    assert "unknown" in first.body["errors"][0]["message"]
    return first


async def test_a_large_batch_whose_answer_was_lost_is_found_and_given_to_the_retry(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, seconds=20) as here:
        recipient = await make_recipient(here.house)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": f"{number}.00", "memo": "x" * 150}
            for number in range(1, COUNT)
        ]
        data = json.dumps({"sourceCurrency": "USD", "payments": payments}).encode()
        await lost(here, data)
        assert len(await holders(tmp_path)) == 1, "the journal has what was asked"
        again = await here.house.ask("POST", "/v1/batches", data=data)
        assert again.status == 200, again.text
        assert again.body["batch"]["totalPayments"] == COUNT - 1
        assert here.service.created["batch"] == 1
        await eventually(partial(only_remembered, tmp_path))


@pytest.fixture
def soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for a minute in case that a connection is reset goes at once."""
    monkeypatch.setattr(settling, "_UNREAD_FOR", timedelta())
    monkeypatch.setattr(settling, "_EXPIRES_EVERY", 0.0)


async def holders(folder: Path) -> set[str]:
    """Whose long texts the state has."""
    state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        return {row.holder for row in await fetch(store, select(pieces.c.holder))}


async def only_remembered(folder: Path) -> bool:
    """Whether the journal has no long text any more."""
    return all('"payments"' in one for one in await holders(folder))


async def test_a_long_answer_that_is_kept_for_a_retry_is_the_same(tmp_path: Path) -> None:
    async with service() as (url, bodies), open_house(tmp_path, url) as house:
        made = await house.ask("POST", "/v1/batches", data=big_batch.body(COUNT, 1))
        path = f"/v1/batches/{made.body['batch']['id']}/generate-quote"
        headers = {"Idempotency-Key": "of this quote"}
        first = await house.ask("POST", path, headers=headers)
        assert len(first.text) > json_codec.LARGE
        quoted = len(bodies)
        again = await house.ask("POST", path, headers=headers)
        assert again.text == first.text
        assert len(bodies) == quoted
        assert any(one.startswith("answer ") for one in await holders(tmp_path))


@pytest.mark.usefixtures("soon_forgotten")
async def test_a_long_answer_that_was_kept_without_its_client_goes_as_soon_as_the_client_has_it(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, seconds=20) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, *["1.00"] * COUNT)
        path = f"/v1/batches/{batch}/generate-quote"
        here.breaks("POST", path.replace(batch, "*"), close="after")
        assert (await here.house.ask("POST", path)).status == 500

        async def is_settled() -> bool:
            return any(one.startswith("answer ") for one in await holders(tmp_path))

        await eventually(is_settled)
        again = await here.house.ask("POST", path)
        assert again.body["batch"]["totalPayments"] == COUNT
        assert len(again.text) > json_codec.LARGE
        await eventually(partial(only_remembered, tmp_path))


@pytest.mark.usefixtures("soon_forgotten")
async def test_a_long_answer_of_the_legacy_service_is_kept_in_pieces_too(tmp_path: Path) -> None:
    long = {"ok": True, "batch": {"id": "B-LEGACY0000000001", "memos": ["für Ada"] * 30_000}}

    async with (
        open_service(lambda one: long if one.method == "POST" else {"ok": True}) as legacy,
        open_valley(tmp_path, legacy_url=legacy.url) as here,
    ):
        await here.says("modes", "set", "--key", NAME, "forward", "--yes")

        async def follows() -> bool:
            await here.house.ask("GET", "/v1/batches")
            return bool(legacy.heard)

        await eventually(follows)
        legacy.heard.clear()
        path, named = "/v1/batches/B-LEGACY0000000001/generate-quote", {"Idempotency-Key": "mine"}
        first = await here.house.ask("POST", path, headers=named)
        assert len(first.text) > json_codec.LARGE
        assert [one.startswith("answer ") for one in await holders(tmp_path)] == [True]
        assert (await here.house.ask("POST", path, headers=named)).text == first.text
        assert len(legacy.heard) == 1
        await here.house.ask("POST", path)
        assert len(legacy.heard) == 2

        async def is_one_left() -> bool:
            return len(await holders(tmp_path)) == 1

        await eventually(is_one_left)


@pytest.mark.usefixtures("soon_forgotten")
@pytest.mark.parametrize("count", [LONG_AS_TEXT_ALONE, COUNT])
async def test_a_long_answer_that_nobody_may_ask_for_again_is_not_kept(
    count: int, tmp_path: Path
) -> None:
    async with service() as (url, _bodies), open_house(tmp_path, url) as house:
        made = await house.ask("POST", "/v1/batches", data=big_batch.body(count, 1))
        path = f"/v1/batches/{made.body['batch']['id']}/generate-quote"
        assert len((await house.ask("POST", path)).text) > json_codec.LARGE
        await eventually(partial(only_remembered, tmp_path))


async def test_a_large_list_of_changes_is_made(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(switches=Switches(), seed=1)) as (house, _simulator):
        recipient = await make_recipient(house)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": f"{number}.00", "memo": "x" * 150}
            for number in range(1, COUNT)
        ]
        body = {"sourceCurrency": "USD", "payments": payments[:1]}
        made = await house.ask("POST", "/v1/batches", body)
        path = f"/v1/batches/{made.body['batch']['id']}"
        changed = await house.ask("PATCH", path, {"payments": payments[1:]})
        assert changed.body == {"ok": True, "object": "updated"}
        whole = (await house.ask("GET", path)).body["batch"]
        assert whole["totalPayments"] == COUNT - 1
        assert whole["amount"] == f"{COUNT * (COUNT - 1) // 2}.00"
        gone = [{"id": one["id"]} for one in whole["payments"]["payments"][1:]]
        removed = await house.ask(
            "PATCH", path, {"remove_payments": gone, "padding": "x" * json_codec.LARGE}
        )
        assert removed.body == {"ok": True, "object": "updated"}
        assert (await house.ask("GET", path)).body["batch"]["totalPayments"] == 1
