"""Batches that are processed in slices: others are served meanwhile, and the result is the same."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import pytest
from sqlalchemy import select

from gateway.config.settings import State
from gateway.payloads import json_codec, worker_thread
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.id_rows import save_legacy_ids
from gateway.storage.tables import text_chunks
from gateway.writes import reconciler
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from mappings import lazy_sequences
from mappings.lazy_sequences import SerializedSequence
from tests.bench import large_batch_bodies
from tests.bench.large_batch_service import LargeBatchConnection
from tests.gateway.compare.fake_services import open_fake_service as open_service
from tests.gateway.storage import conftest
from tests.legacy_and_current import KEY_NAME, open_gateway_between
from tests.operator_commands import wait_until_async
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import KEY, GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service, ServiceOptions
from tests.sockets import wait_until
from tests.state import count_operations_by_state, fetch
from tests.test_writes_in_doubt import open_gateway_with_faults

database, postgres, sqlite = conftest.database, conftest.postgres, conftest.sqlite

COUNT = 2000
LONG_TEXT_COUNT = 400
"""Too few payments for slices, but the text of the answer is long."""
RECIPIENT_PATH = "/v1/recipients/R-BENCHABC00000001"
TIME_PATTERN = re.compile(
    rf'"(createdAt|updatedAt)":"(?!{re.escape(large_batch_bodies.CREATED_AT)}")[^"]*"'
)
ID_PATTERN = re.compile(r"\b[BP]-[A-Za-z0-9]{6,}\b")


class LargeBatchService(LargeBatchConnection):
    """Records request bodies, and refuses requests with a prefix."""

    bodies: list[bytes]
    refusal: dict[str, Any] | None
    refused_prefix: bytes

    def respond(self, head: bytes, body: bytes) -> bytes:
        type(self).bodies.append(body)
        if self.refusal and head.startswith(self.refused_prefix):
            return json.dumps(self.refusal).encode()
        if b"/generate-quote " in head:
            return b'{"ok":true}'
        return super().respond(head, body)


@asynccontextmanager
async def open_service_of_large_batches(
    refusal_body: dict[str, Any] | None = None, refused_prefix: bytes = b"POST /v1/batches "
) -> AsyncIterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class ThisService(LargeBatchService):
        counts = []  # noqa: RUF012 - each service has its own

    ThisService.bodies, ThisService.refusal, ThisService.refused_prefix = (
        bodies,
        refusal_body,
        refused_prefix,
    )
    server = await asyncio.get_running_loop().create_server(ThisService, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
    finally:
        server.close()


def normalize_ids_and_times(text: str) -> str:
    """Replaces alias ids, which depend on the gateway's key, and the gateway's own times."""
    names: dict[str, str] = {}
    undated = TIME_PATTERN.sub(r'"\1":"now"', text)
    return ID_PATTERN.sub(lambda match: names.setdefault(match[0], f"id {len(names)}"), undated)


async def create_read_and_quote(
    folder: Path, data: bytes, **sections: Any
) -> tuple[list[str], list[bytes]]:
    """Creates, reads and quotes a batch; returns the answers and the upstream bodies."""
    folder.mkdir()
    async with (
        open_service_of_large_batches() as (url, bodies),
        open_gateway(folder, url, **sections) as gateway,
    ):
        create_response = await gateway.request("POST", "/v1/batches", data=data)
        responses = [create_response]
        if create_response.status == 200:
            responses.append(
                await gateway.request("GET", f"/v1/batches/{create_response.body['batch']['id']}")
            )
            responses.append(
                await gateway.request(
                    "POST", f"/v1/batches/{create_response.body['batch']['id']}/generate-quote"
                )
            )
        return [
            f"{response.status} {normalize_ids_and_times(response.text)}" for response in responses
        ], bodies


async def edit_large_batch(folder: Path, **sections: Any) -> tuple[list[str], list[bytes]]:
    """Edits a batch in several ways, as a draft too; returns the answers and upstream bodies."""
    folder.mkdir()
    async with (
        open_service_of_large_batches() as (url, bodies),
        open_gateway(folder, url, **sections) as gateway,
    ):
        create_response = await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
        )
        path = f"/v1/batches/{create_response.body['batch']['id']}"
        batch_response = await gateway.request("GET", path)
        ids = [payment["id"] for payment in batch_response.body["batch"]["payments"]["payments"]]
        responses = [batch_response]
        for data in (
            large_batch_bodies.build_updates(ids, "alike"),
            large_batch_bodies.build_updates([*reversed(ids[:-1]), "P-1"], "alike"),
            large_batch_bodies.build_removal(ids[7]),
            large_batch_bodies.build_additions(COUNT, "alike"),
            large_batch_bodies.build_updates(ids[:2], "alike"),
        ):
            responses += [
                await gateway.request("PATCH", path, data=data),
                await gateway.request("GET", path),
            ]
        responses += [
            await gateway.request("POST", f"{path}/generate-quote"),
            await gateway.request("GET", path),
        ]
    return [
        f"{response.status} {normalize_ids_and_times(response.text)}" for response in responses
    ], bodies


@pytest.fixture
def record_unpack_threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Records the threads in which slices are unpacked."""
    unpack, threads = SerializedSequence.read_numbered_slice, set[int]()

    def record_thread(self: SerializedSequence, number: int) -> list[Any]:
        threads.add(threading.get_ident())
        return unpack(self, number)

    monkeypatch.setattr(SerializedSequence, "read_numbered_slice", record_thread)
    return threads


async def test_large_changes_are_equal_in_slices_and_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_unpack_threads: set[int]
) -> None:
    by_slices = await edit_large_batch(tmp_path / "slices")
    assert record_unpack_threads
    assert threading.get_ident() not in record_unpack_threads
    monkeypatch.setattr(json_codec, "LARGE_BYTES", 2**40)
    at_once = await edit_large_batch(tmp_path / "at once")
    assert by_slices[0] == at_once[0]
    assert by_slices[1] == at_once[1]
    assert [response[:3] for response in by_slices[0]] == ["200"] * 3 + ["406"] + ["200"] * 9
    draft = json.loads(by_slices[0][8].partition(" ")[2])["batch"]
    assert draft["totalPayments"] == len(draft["payments"]["payments"]) == 2 * COUNT - 1


def build_body_with_payments(**changes: Any) -> bytes:
    """Builds a large body in which some payments are replaced: ``_3`` is the fourth."""
    body = json.loads(large_batch_bodies.build_create_body(COUNT, 1))
    for position, payment in changes.items():
        body["payments"][int(position[1:])] = payment
    return json.dumps(body, ensure_ascii=False).encode()


LARGE_BODIES = [
    pytest.param(large_batch_bodies.build_create_body(COUNT, 1), id="all good"),
    pytest.param(
        build_body_with_payments(
            _0={"recipient": {"id": "R-1"}, "sourceAmount": "1.5"},
            _700={"recipient": {}, "targetAmount": "1.00"},
            _1999={"recipient": {"id": "B-1"}, "sourceAmount": 3, "targetAmount": "1.00"},
        ),
        id="three wrong ones",
    ),
    pytest.param(
        build_body_with_payments(_5="no object", _1900={"recipient": "x"}), id="wrong shapes"
    ),
    pytest.param(build_body_with_payments(_9={"sourceCurrency": "EUR"}), id="another currency"),
    pytest.param(build_body_with_payments(_9={"memo": "é王 \u2028"}) + b" ", id="no recipient"),
    pytest.param(build_body_with_payments(_1500={"a": 1})[:-20], id="cut off"),
    pytest.param(build_body_with_payments()[:-1] + b',"payments":[]}', id="a key twice"),
]


@pytest.mark.parametrize("data", LARGE_BODIES)
async def test_large_batch_is_equal_in_slices_and_at_once(
    data: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_unpack_threads: set[int],
) -> None:
    assert len(data) > json_codec.LARGE_BYTES
    by_slices = await create_read_and_quote(tmp_path / "slices", data)
    assert threading.get_ident() not in record_unpack_threads
    assert by_slices[0][0][:3] != "200" or record_unpack_threads
    monkeypatch.setattr(json_codec, "LARGE_BYTES", 2**40)
    at_once = await create_read_and_quote(tmp_path / "at once", data)
    assert by_slices[0] == at_once[0]
    assert by_slices[1] == at_once[1]
    if data == large_batch_bodies.build_create_body(COUNT, 1):
        assert by_slices[0][0].startswith('200 {"ok":true,"batch":{"id":')
        read = json.loads(by_slices[0][1].partition(" ")[2])["batch"]
        assert read["payments"]["meta"]["records"] == len(read["payments"]["payments"]) == COUNT


async def test_refusal_of_a_large_batch_names_the_fields_of_the_client(tmp_path: Path) -> None:
    error = {
        "code": "invalid_field",
        "message": "payments[1500].amount is odd",
        "field": "payments[1500].amount",
    }
    async with (
        open_service_of_large_batches({"ok": False, "errors": [error]}) as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        response = await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
        )
    assert response.status == 406
    assert response.body["errors"] == [
        {
            "code": "invalid_field",
            "message": "payments[1500].sourceAmount is odd",
            "field": "payments[1500].sourceAmount",
        }
    ]


async def test_refusal_of_a_large_change_names_the_ids_of_the_client(tmp_path: Path) -> None:
    payment_id = "P-BENCHABCDEFGH00000007"
    error = {"code": "invalid_field", "message": f"{payment_id} is odd"}
    service = open_service_of_large_batches({"ok": False, "errors": [error]}, b"PATCH ")
    async with service as (url, bodies), open_gateway(tmp_path, url) as gateway:
        path, ids = await create_and_read(gateway)
        async with open_store(gateway.settings.state) as store:
            # An imported id, which answers use unless the client used another id.
            tenant = Tenant(KEY["merchant"], KEY["environment"])
            await save_legacy_ids(store, tenant, {"P-OLD": payment_id}, imported=True)
        response = await gateway.request(
            "PATCH", path, data=large_batch_bodies.build_updates(ids, "alike")
        )
    assert payment_id.encode() in bodies[-1]
    assert response.status == 406
    assert [error["message"] for error in response.body["errors"]] == [f"{ids[7]} is odd"]


async def test_large_change_naming_a_payment_twice_is_refused(
    tmp_path: Path,
) -> None:
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        path, ids = await create_and_read(gateway)
        payment_ids = [*reversed(ids), "P-BENCHABCDEFGH00000007", ids[9], "P-none"]
        response = await gateway.request(
            "PATCH", path, data=large_batch_bodies.build_updates(payment_ids, "alike")
        )
    assert response.status == 406
    errors = [
        (error["field"], error["message"].partition(" ")[2]) for error in response.body["errors"]
    ]
    assert errors == [
        (f"update_payments[{COUNT}].id", "is named more than once."),
        (f"update_payments[{COUNT + 1}].id", "is named more than once."),
        (f"update_payments[{COUNT + 2}].id", "is not a payment of this batch."),
    ]


async def create_and_read(gateway: GatewayUnderTest) -> tuple[str, list[str]]:
    """Creates a large batch; returns its path and the client's ids of its payments."""
    create_response = await gateway.request(
        "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
    )
    path = f"/v1/batches/{create_response.body['batch']['id']}"
    payments = (await gateway.request("GET", path)).body["batch"]["payments"]["payments"]
    return path, [entry["id"] for entry in payments]


async def test_large_change_in_any_order_reads_each_slice_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if of a much larger batch, of which all slices are serialized.
    monkeypatch.setattr(lazy_sequences, "UNSERIALIZED_BYTES", 0)
    compute_slice, read_counts = SerializedSequence._compute_slice, Counter[str]()
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        path, ids = await create_and_read(gateway)
        for order, ordered_ids in (("as shown", ids), ("shuffled", Random(1).sample(ids, COUNT))):

            def count_and_compute(sequence: SerializedSequence, number: int) -> list[Any]:
                read_counts[order] += 1  # noqa: B023 - called in this round only
                return compute_slice(sequence, number)

            monkeypatch.setattr(SerializedSequence, "_compute_slice", count_and_compute)
            data = large_batch_bodies.build_updates(ordered_ids, "alike")
            await request_successfully(gateway, "PATCH", path.removeprefix("/v1"), json.loads(data))
    assert read_counts["shuffled"] < 2 * read_counts["as shown"]


class GatedExecutor(ThreadPoolExecutor):
    """Starts each task only after another request was answered since the previous task."""

    def __init__(self) -> None:
        super().__init__(1)
        self.answer_count = threading.Semaphore(0)
        self.started_count = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
        def run_after_answer() -> Any:
            assert self.answer_count.acquire(timeout=30), "nobody was served meanwhile"
            self.started_count += 1
            return function(*args, **keywords)

        return super().submit(run_after_answer)


async def test_others_are_served_between_the_steps_of_a_large_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = GatedExecutor()
    monkeypatch.setattr(worker_thread, "_thread", executor)

    async def send_requests(gateway: GatewayUnderTest) -> None:
        while True:
            assert (await gateway.request("GET", RECIPIENT_PATH)).status == 200
            executor.answer_count.release()

    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        other_requests = asyncio.ensure_future(send_requests(gateway))
        create_response = await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
        )
        assert create_response.status == 200, create_response.text
        step_count, executor.started_count = executor.started_count, 0
        read = await gateway.request("GET", f"/v1/batches/{create_response.body['batch']['id']}")
        assert read.body["batch"]["totalPayments"] == COUNT
        other_requests.cancel()
    executor.shutdown()
    # Reading, checking, digests, every step of the flow, writing, the journal's texts; and back.
    assert step_count > 15
    assert executor.started_count > 5


async def test_large_batch_of_a_disconnected_client_is_created_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = GatedExecutor()
    monkeypatch.setattr(worker_thread, "_thread", executor)
    data = large_batch_bodies.build_create_body(COUNT, 1)
    async with (
        open_service_of_large_batches() as (url, bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        abandoned_request = asyncio.ensure_future(gateway.request("POST", "/v1/batches", data=data))
        while executor.started_count < 4:
            assert (await gateway.request("GET", RECIPIENT_PATH)).status == 200
            executor.answer_count.release()
        abandoned_request.cancel()
        with suppress(asyncio.CancelledError):
            await abandoned_request
        executor.answer_count.release(10_000)
        retry_response = await gateway.request("POST", "/v1/batches", data=data)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.body["batch"]["totalPayments"] == COUNT
    executor.shutdown()
    assert sum(b'"amount"' in body for body in bodies) == 1


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest) -> State:
    state_settings = request.getfixturevalue(request.param)
    assert isinstance(state_settings, State)
    return state_settings


async def test_slices_of_a_change_are_unpacked_with_postgresql_in_another_thread(
    postgres: State, tmp_path: Path, record_unpack_threads: set[int]
) -> None:
    """One transaction writes more aliases than the database has row locks for."""
    state_section = {"url": postgres.url, "encryption_key_file": postgres.encryption_key_file}
    summaries, _bodies = await edit_large_batch(tmp_path / "gateway", state=state_section)
    assert sum(response.startswith("200") for response in summaries) == len(summaries) - 1
    assert record_unpack_threads
    assert threading.get_ident() not in record_unpack_threads


async def test_slices_are_unpacked_with_postgresql_in_another_thread(
    postgres: State, tmp_path: Path, record_unpack_threads: set[int]
) -> None:
    state_section = {"url": postgres.url, "encryption_key_file": postgres.encryption_key_file}
    summaries, _bodies = await create_read_and_quote(
        tmp_path / "gateway", large_batch_bodies.build_create_body(COUNT, 1), state=state_section
    )
    assert [response[:3] for response in summaries] == ["200"] * 3
    assert record_unpack_threads
    assert threading.get_ident() not in record_unpack_threads


async def test_large_change_is_computed_outside_of_transactions(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, unpacked_in = list[str](), list[str]()
    real_apply, unpack = ObjectStateStore.apply_changes, SerializedSequence.read_numbered_slice

    def record_unpack(self: SerializedSequence, number: int) -> list[Any]:
        unpacked_in.extend(transactions)
        return unpack(self, number)

    async def record_apply(self: ObjectStateStore, *arguments: Any, **options: Any) -> None:
        transactions.append("a transaction")
        await real_apply(self, *arguments, **options)
        transactions.pop()

    state_section = {"url": state.url, "encryption_key_file": state.encryption_key_file}
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url, state=state_section) as gateway,
    ):
        path, ids = await create_and_read(gateway)
        monkeypatch.setattr(SerializedSequence, "read_numbered_slice", record_unpack)
        monkeypatch.setattr(ObjectStateStore, "apply_changes", record_apply)
        response = await gateway.request(
            "PATCH", path, data=large_batch_bodies.build_updates(ids, "alike")
        )
    assert response.status == 200
    assert unpacked_in == []


async def test_large_request_is_released_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions: list[Callable[[], OperationExecution | None]] = []

    def record_execution(self: Journal, *arguments: Any) -> OperationExecution:
        execution = original_execution(self, *arguments)
        executions.append(ref(execution))
        return execution

    original_execution = Journal.start_execution
    monkeypatch.setattr(Journal, "start_execution", record_execution)
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
        )
        assert len(executions) == 1

        def is_released() -> bool:
            gc.collect()
            return executions[0]() is None

        # Before the connection has forgotten the request.
        await wait_until(is_released, 8)


async def test_progress_of_a_large_request_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        headers = {"X-Request-Id": "large-1"}
        data = large_batch_bodies.build_create_body(COUNT, 1)
        create_response = await gateway.request("POST", "/v1/batches", data=data, headers=headers)
        assert create_response.status == 200
        await gateway.request(
            "GET", f"/v1/batches/{create_response.body['batch']['id']}", headers=headers
        )
    captured = capsys.readouterr()
    output = captured.out + captured.err
    steps = re.findall(
        r"step['\"=: ]+(\w+)", "\n".join(line for line in output.splitlines() if "large" in line)
    )
    assert steps == [
        "translating_request",
        "calling_service",
        *["receiving_response"] * 3,
        "sending_response",
    ]
    assert "Royalties" not in output


async def lose_create(setup: Any, data: bytes) -> GatewayResponse:
    setup.add_fault("POST", "/v1/batches", close="after")
    response: GatewayResponse = await setup.gateway.request("POST", "/v1/batches", data=data)
    assert response.status == 500
    assert "unknown" in response.body["errors"][0]["message"]
    return response


async def test_retry_of_a_large_batch_in_doubt_gets_the_found_batch(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, seconds=20) as setup:
        recipient = await create_recipient(setup.gateway)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": f"{number}.00", "memo": "x" * 150}
            for number in range(1, COUNT)
        ]
        data = json.dumps({"sourceCurrency": "USD", "payments": payments}).encode()
        await lose_create(setup, data)
        assert len(await load_piece_holders(tmp_path)) == 1, "the journal has what was asked"
        retry_response = await setup.gateway.request("POST", "/v1/batches", data=data)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.body["batch"]["totalPayments"] == COUNT - 1
        assert setup.service.creation_counts["batch"] == 1
        await wait_until_async(partial(has_no_journal_pieces, tmp_path))


@pytest.fixture
def expire_answers_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes answers expire immediately that are otherwise kept for a minute."""
    monkeypatch.setattr(reconciler, "_UNREAD_RETENTION", timedelta())


async def load_piece_holders(folder: Path) -> set[str]:
    """Loads the owners of long texts in the database."""
    state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        return {row.holder for row in await fetch(store, select(text_chunks.c.holder))}


async def has_no_journal_pieces(folder: Path) -> bool:
    """Whether no long text of the journal is stored."""
    return all('"payments"' in holder for holder in await load_piece_holders(folder))


async def test_long_answer_is_replayed_unchanged(tmp_path: Path) -> None:
    async with (
        open_service_of_large_batches() as (url, bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        create_response = await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(COUNT, 1)
        )
        path = f"/v1/batches/{create_response.body['batch']['id']}/generate-quote"
        headers = {"Idempotency-Key": "of this quote"}
        first_response = await gateway.request("POST", path, headers=headers)
        assert len(first_response.text) > json_codec.LARGE_BYTES
        quote_count = len(bodies)
        retry_response = await gateway.request("POST", path, headers=headers)
        assert retry_response.text == first_response.text
        assert len(bodies) == quote_count
        assert any(holder.startswith("answer ") for holder in await load_piece_holders(tmp_path))


@pytest.mark.usefixtures("expire_answers_immediately")
async def test_long_answer_is_deleted_once_the_client_has_it(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, seconds=20) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, *["1.00"] * COUNT)
        path = f"/v1/batches/{batch}/generate-quote"
        setup.add_fault("POST", path.replace(batch, "*"), close="after")
        assert (await setup.gateway.request("POST", path)).status == 500

        async def is_settled() -> bool:
            return any(
                holder.startswith("answer ") for holder in await load_piece_holders(tmp_path)
            )

        await wait_until_async(is_settled)
        retry_response = await setup.gateway.request("POST", path)
        assert retry_response.body["batch"]["totalPayments"] == COUNT
        assert len(retry_response.text) > json_codec.LARGE_BYTES
        await wait_until_async(partial(has_no_journal_pieces, tmp_path))


@pytest.mark.usefixtures("expire_answers_immediately")
async def test_long_legacy_answer_is_stored_in_pieces(tmp_path: Path) -> None:
    long_answer = {"ok": True, "batch": {"id": "B-LEGACY0000000001", "memos": ["für Ada"] * 30_000}}

    async with (
        open_service(
            lambda value: long_answer if value.method == "POST" else {"ok": True}
        ) as legacy,
        open_gateway_between(tmp_path, legacy_url=legacy.url) as setup,
    ):
        await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

        async def has_switched() -> bool:
            await setup.gateway.request("GET", "/v1/batches")
            return bool(legacy.requests)

        await wait_until_async(has_switched)
        legacy.requests.clear()
        path, headers = "/v1/batches/B-LEGACY0000000001/generate-quote", {"Idempotency-Key": "mine"}
        first_response = await setup.gateway.request("POST", path, headers=headers)
        assert len(first_response.text) > json_codec.LARGE_BYTES
        assert [holder.startswith("answer ") for holder in await load_piece_holders(tmp_path)] == [
            True
        ]
        assert (
            await setup.gateway.request("POST", path, headers=headers)
        ).text == first_response.text
        assert len(legacy.requests) == 1
        await setup.gateway.request("POST", path)
        assert len(legacy.requests) == 2

        async def is_one_left() -> bool:
            return len(await load_piece_holders(tmp_path)) == 1

        await wait_until_async(is_one_left)


@pytest.mark.usefixtures("expire_answers_immediately")
@pytest.mark.parametrize("count", [LONG_TEXT_COUNT, COUNT])
async def test_long_answer_without_idempotency_key_is_not_stored(
    count: int, tmp_path: Path
) -> None:
    async with (
        open_service_of_large_batches() as (url, _bodies),
        open_gateway(tmp_path, url) as gateway,
    ):
        create_response = await gateway.request(
            "POST", "/v1/batches", data=large_batch_bodies.build_create_body(count, 1)
        )
        path = f"/v1/batches/{create_response.body['batch']['id']}/generate-quote"
        assert len((await gateway.request("POST", path)).text) > json_codec.LARGE_BYTES
        await wait_until_async(partial(has_no_journal_pieces, tmp_path))


async def test_long_answer_is_stored_for_the_key_of_a_retry_that_waited_for_it(
    tmp_path: Path,
) -> None:
    """Otherwise every later request with the key would be refused with 500."""
    service = Service(options=ServiceOptions(), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payment = {"recipient": {"id": await create_recipient(gateway)}, "memo": "x" * 150}
        payments = [{**payment, "sourceAmount": f"{n}.00"} for n in range(1, LONG_TEXT_COUNT)]
        body = {"sourceCurrency": "USD", "payments": payments}
        create_response = await gateway.request("POST", "/v1/batches", body)
        path = f"/v1/batches/{create_response.body['batch']['id']}/generate-quote"
        quote, headers = partial(gateway.request, "POST", path), {"Idempotency-Key": "mine"}
        service.faults.append(Fault("POST", "/v1/batches/*/generate-quote", answer_delay=1))
        first_request = asyncio.ensure_future(quote())
        await wait_until(lambda: not service.faults)
        responses = [await quote(headers=headers), await first_request]

        async def is_closed() -> bool:
            states = await count_operations_by_state(gateway.settings)
            return not states["running"] and not states["done"]

        await wait_until_async(is_closed)
        responses.append(await quote(headers=headers))
        assert [response.status for response in responses] == [200] * 3
        assert len({response.text for response in responses}) == 1
        assert len(responses[0].text) > json_codec.LARGE_BYTES
        assert len(service.list_requests("POST", "/v1/batches/*/generate-quote")) == 1


async def test_large_list_of_changes_is_applied(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service(options=ServiceOptions(), seed=1)) as (
        gateway,
        _simulator,
    ):
        recipient = await create_recipient(gateway)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": f"{number}.00", "memo": "x" * 150}
            for number in range(1, COUNT)
        ]
        body = {"sourceCurrency": "USD", "payments": payments[:1]}
        create_response = await gateway.request("POST", "/v1/batches", body)
        path = f"/v1/batches/{create_response.body['batch']['id']}"
        change_response = await gateway.request("PATCH", path, {"payments": payments[1:]})
        assert change_response.body == {"ok": True, "object": "updated"}
        batch_body = (await gateway.request("GET", path)).body["batch"]
        assert batch_body["totalPayments"] == COUNT - 1
        assert batch_body["amount"] == f"{COUNT * (COUNT - 1) // 2}.00"
        removals = [{"id": payment["id"]} for payment in batch_body["payments"]["payments"][1:]]
        removal_response = await gateway.request(
            "PATCH", path, {"remove_payments": removals, "padding": "x" * json_codec.LARGE_BYTES}
        )
        assert removal_response.body == {"ok": True, "object": "updated"}
        assert (await gateway.request("GET", path)).body["batch"]["totalPayments"] == 1


async def test_payments_to_very_many_recipients_are_added_to_a_draft_without_reading_each(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "1.00", "2.00")
        path, (first, _) = f"/batches/{batch}", await load_payment_ids(gateway, batch)
        await request_successfully(gateway, "DELETE", f"{path}/payments/{first}")
        payments = [
            {"recipient": {"id": recipient.id}, "sourceAmount": "3.00"}
            for recipient in service.seed_recipients(1001)
        ]
        service.requests.clear()
        await request_successfully(gateway, "PATCH", path, {"payments": payments})
        assert not service.list_requests("GET", "/v1/recipients/*")
