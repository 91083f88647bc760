from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.auth.key_rows import load_listed_keys, revoke_key
from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.config.settings import State
from gateway.http.client_address import parse_address
from gateway.operator.account_checks import (
    FORBIDDEN_ADVICE,
    AccountProbe,
    find_credentials_replacement_problem,
    probe_account,
)
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.change_poller import ChangePoller
from gateway.storage.key_file import add_encryption_key
from gateway.storage.sqlite_driver import sqlite3
from mappings.failures import Unreachable
from tests.key_lines import build_key_line, import_keys_into
from tests.operator_commands import wait_until_async
from tests.state import break_reads, record_statements

API_KEY = "key-of-acme-0123456789abcdefghij"
OTHER_API_KEY = "key-of-bolt-0123456789abcdefghij"
ACME = Tenant("acme", "live")


@asynccontextmanager
async def open_polling_key_store(store: Store, seconds: float = 0.02) -> AsyncIterator[ApiKeyStore]:
    change_poller = ChangePoller(store, seconds)
    async with ApiKeyStore(store) as keyring:
        change_poller.add_listener(keyring.reload_if_changed)
        async with change_poller:
            yield keyring


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state) as store:
        await import_keys_into(store, build_key_line())
        yield store


@pytest.fixture
async def second_store(state: State, store: Store) -> AsyncIterator[Store]:
    """A second store on the same file, like that of another process."""
    async with open_store(state) as second:
        yield second


@asynccontextmanager
async def count_queries() -> AsyncIterator[list[Any]]:
    """Record the statements about keys that reach the database."""
    with record_statements("hash_key_id") as queries:
        yield queries


# Keys.


def test_repr_of_key_hides_credentials() -> None:
    credentials = Credentials("access", "hunter2")
    text = repr(ApiKey("1", "acme-live", "key-of-a", "acme", "live", credentials, None, ()))
    assert "hunter2" not in text
    assert "access" not in text


# Look-up.


async def test_malformed_key_costs_no_query(store: Store) -> None:
    async with ApiKeyStore(store) as keyring, count_queries() as queries:
        for text in ("", "k" * 513, "kéy"):
            assert await keyring.find_active_key(text) is None
    assert queries == []


async def test_known_key_costs_one_query_for_any_number_of_callers(store: Store) -> None:
    async with ApiKeyStore(store) as keyring, count_queries() as queries:
        keys_found = await asyncio.gather(*(keyring.find_active_key(API_KEY) for _ in range(50)))
        keys_found.append(await keyring.find_active_key(API_KEY))
    assert len(queries) == 1
    assert all(key == keys_found[0] for key in keys_found)


async def test_unknown_key_is_cached_for_some_seconds(store: Store) -> None:
    now = 0.0
    async with ApiKeyStore(store, clock=lambda: now) as keyring, count_queries() as queries:
        for _ in range(3):
            assert await keyring.find_active_key("guess") is None
        assert len(queries) == 1
        now = 6.0
        assert await keyring.find_active_key("guess") is None
        assert len(queries) == 2


async def test_guessed_keys_do_not_evict_known_keys(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        keyring._unknown = type(keyring._unknown)(10, 5)
        assert await keyring.find_active_key(API_KEY)
        for number in range(50):
            await keyring.find_active_key(f"guess-{number}")
        assert len(keyring._unknown) == 10
        async with count_queries() as queries:
            assert await keyring.find_active_key(API_KEY)
    assert queries == []


async def test_cancelled_caller_does_not_cancel_lookup_for_others(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        first = asyncio.create_task(keyring.find_active_key(API_KEY))
        second = asyncio.create_task(keyring.find_active_key(API_KEY))
        await asyncio.sleep(0)
        first.cancel()
        assert await second


async def test_key_cache_holds_and_shows_no_plain_key(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        await keyring.find_active_key(API_KEY)
        await keyring.find_active_key("guess")
        cache_text = repr([*keyring._known.items(), *keyring._unknown.items(), keyring])
    for secret in (API_KEY, "guess", "secret-of-acme"):
        assert secret not in cache_text


async def test_key_hashed_with_earlier_encryption_key_is_found(store: Store, state: State) -> None:
    add_encryption_key(state.encryption_key_file)
    async with open_store(state) as second_store, ApiKeyStore(second_store) as keyring:
        assert await keyring.find_active_key(API_KEY)


# Changes by another process.


async def revoke_only_key(store: Store) -> None:
    (listed_key,) = await load_listed_keys(store)
    await revoke_key(store, listed_key.id)


async def test_limit_changed_by_another_process_applies_to_cached_keys(
    store: Store, second_store: Store
) -> None:
    async with ApiKeyStore(store) as keyring:
        await keyring.find_active_key(API_KEY)
        await import_keys_into(
            second_store, build_key_line(requests_per_hour=3, allowed_ips=["192.0.2.0/24"])
        )
        await keyring.refresh()
        api_key = await keyring.find_active_key(API_KEY)
    assert api_key
    assert api_key.requests_per_hour == 3
    assert not api_key.admits(parse_address("10.0.0.1"))


async def test_answer_older_than_last_poll_is_not_cached(
    store: Store, second_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up reads a key; before it is cached, the key is revoked and a poll sees that."""
    read_directly = store.read

    async def read_and_wait(body: Any, **options: Any) -> Any:
        answer = await read_directly(body, **options)
        if not is_reading.is_set():
            is_reading.set()
            await may_continue.wait()
        return answer

    is_reading, may_continue = asyncio.Event(), asyncio.Event()
    async with ApiKeyStore(store) as keyring:
        monkeypatch.setattr(store, "read", read_and_wait)
        find_task = asyncio.create_task(keyring.find_active_key(API_KEY))
        await is_reading.wait()
        # The result of a poll is set directly.
        keyring.change_count += 1
        may_continue.set()
        await find_task
        keyring.change_count -= 1
        await revoke_only_key(second_store)
        assert await keyring.find_active_key(API_KEY) is None


async def test_restored_database_is_read_again(store: Store, second_store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        await keyring.find_active_key(API_KEY)
        keyring.change_count += 5
        (listed_key,) = await load_listed_keys(second_store)
        await revoke_key(second_store, listed_key.id)
        await keyring.refresh()
        assert await keyring.find_active_key(API_KEY) is None


# Outage of the database.


async def test_known_keys_work_during_outage_and_unknown_keys_are_unavailable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_polling_key_store(store) as keyring:
        assert await keyring.find_active_key(API_KEY)
        break_reads(monkeypatch)
        await asyncio.sleep(0.1)
        assert await keyring.find_active_key(API_KEY)
        with pytest.raises(StoreUnavailable) as error:
            await keyring.find_active_key(OTHER_API_KEY)
        assert OTHER_API_KEY not in str(error.value)


async def test_known_keys_stop_working_ten_minutes_after_last_poll(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    async with ApiKeyStore(store, clock=lambda: now) as keyring:
        assert await keyring.find_active_key(API_KEY)
        break_reads(monkeypatch)
        now = 600.0
        assert await keyring.find_active_key(API_KEY)
        now = 601.0
        with pytest.raises(StoreUnavailable):
            await keyring.find_active_key(API_KEY)


async def test_polling_resumes_after_database_lock(
    store: Store, second_store: Store, state: State
) -> None:
    async def is_refused() -> bool:
        return await keyring.find_active_key(API_KEY) is None

    async with open_polling_key_store(store) as keyring:
        assert await keyring.find_active_key(API_KEY)
        other_connection = sqlite3.connect(
            state.url.removeprefix("sqlite:///"), isolation_level=None
        )
        other_connection.execute("BEGIN EXCLUSIVE")
        await asyncio.sleep(0.2)
        assert await keyring.find_active_key(API_KEY)
        other_connection.execute("ROLLBACK")
        other_connection.close()
        await revoke_only_key(second_store)
        await wait_until_async(is_refused, 2)


# Accounts behind credentials.


@dataclass
class PlannedReply:
    status: int
    body: bytes


class FakeUpstream:
    """Answers each access key with its configured reply."""

    def __init__(self, **replies: PlannedReply) -> None:
        self.replies = replies
        self.calls: list[tuple[str, str, bytes | None, bool]] = []

    async def send(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
    ) -> PlannedReply:
        self.calls.append((method, target, body, write))
        if credentials.access_key not in self.replies:
            raise Unreachable("connection refused")
        return self.replies[credentials.access_key]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            PlannedReply(403, b""),
            f"refused, the service answered 403: {FORBIDDEN_ADVICE}",
        ),
        (PlannedReply(503, b""), "unreachable, the service answered 503"),
        (PlannedReply(200, b"<html>"), "unreachable, the response cannot be parsed"),
        (PlannedReply(200, b"\xff"), "unreachable, the response cannot be parsed"),
        (PlannedReply(200, b'{"recipients": [{}]}'), "unreachable, the response cannot be parsed"),
        (PlannedReply(200, b'{"recipients": null}'), "unreachable, the response cannot be parsed"),
    ],
)
async def test_answer_of_service_about_credentials_is_reported(
    reply: PlannedReply, expected: str
) -> None:
    service = FakeUpstream(mine=reply)
    upstream = cast("Any", service)
    probe = await probe_account(upstream, "live", Credentials("mine", "a secret"))
    assert probe.description == expected
    probe = await probe_account(upstream, "live", Credentials("none", "a secret"))
    assert probe.description == "unreachable, GET /v1/recipients: connection refused"


def build_visible_account(*ids: str) -> AccountProbe:
    return AccountProbe("accepted", ids)


@pytest.mark.parametrize(
    ("old_probe", "new_probe", "expected_reason"),
    [
        (build_visible_account("R-1"), build_visible_account("R-1"), None),
        (build_visible_account(), build_visible_account(), None),
        (build_visible_account("R-1"), AccountProbe("unreachable"), "could not be compared"),
        (AccountProbe("unreachable"), build_visible_account("R-1"), "compared: unreachable"),
        (build_visible_account("R-1", "R-2"), build_visible_account("R-2"), "another account"),
        (build_visible_account("R-1"), build_visible_account(), "another account"),
        (build_visible_account(), build_visible_account("R-1"), "has none"),
        (
            build_visible_account("R-1"),
            AccountProbe("refused", reason="the service answered 403"),
            "refuses the new credentials: the service answered 403",
        ),
        (AccountProbe("refused"), build_visible_account("R-1"), "cannot be compared"),
    ],
)
def test_new_credentials_must_open_the_same_account(
    old_probe: AccountProbe, new_probe: AccountProbe, expected_reason: str | None
) -> None:
    problem_text = find_credentials_replacement_problem(old_probe, new_probe)
    assert (problem_text is None) == (expected_reason is None)
    assert (expected_reason or "") in (problem_text or "")
