from __future__ import annotations

import asyncio
import ipaddress
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.key_rows import load_listed_keys, replace_credentials, revoke_key
from gateway.auth.keys import (
    AccountProbe,
    ApiKey,
    ApiKeyStore,
    CredentialCheck,
    describe_credential_problems,
    find_replacement_problem,
    find_shared_accounts,
    probe_account,
)
from gateway.auth.signing import Credentials
from gateway.config.settings import State
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.keyfile import add_key
from mappings.effects import Unreachable
from tests.key_lines import put
from tests.states import recorded_statements

API_KEY = "key-of-acme-0123456789abcdefghij"
OTHER = "key-of-bolt-0123456789abcdefghij"
ACME = Tenant("acme", "live")
SOON = 0.02


def line(merchant: str = "acme", api_key: str = API_KEY, **more: Any) -> dict[str, Any]:
    pair = {"access_key": f"access-{merchant}", "secret_key": f"secret-of-{merchant}"}
    return {"merchant": merchant, "environment": "live", "api_key": api_key, **pair, **more}


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state) as store:
        await put(store, line())
        yield store


@pytest.fixture
async def elsewhere(state: State, store: Store) -> AsyncIterator[Store]:
    """The same file, opened as another process opens it."""
    async with open_store(state) as second:
        yield second


@asynccontextmanager
async def counted() -> AsyncIterator[list[Any]]:
    """The statements about keys that the database is asked meanwhile."""
    with recorded_statements("hash_key_id") as asked:
        yield asked


async def until(holds: Any, seconds: float = 2) -> None:
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, "not within its time"
        await asyncio.sleep(0.01)


def broken(state: State) -> None:
    """As a database is that cannot be read: its file is no database any more."""
    Path(state.url.removeprefix("sqlite:///")).write_bytes(b"no database" * 1000)


# What a key is.


def key(*networks: str) -> ApiKey:
    return ApiKey(
        id="1",
        name="acme-live",
        prefix="key-of-a",
        merchant="acme",
        environment="live",
        credentials=Credentials("access", "hunter2"),
        requests_per_hour=None,
        allowed_ips=tuple(map(ipaddress.ip_network, networks)),
    )


def test_a_keys_repr_shows_neither_its_pair_nor_its_secret() -> None:
    assert "hunter2" not in repr(key())
    assert "access" not in repr(key())


def test_a_key_belongs_to_its_merchant_and_environment() -> None:
    assert key().tenant == ("acme", "live")


def test_a_key_without_networks_admits_any_address() -> None:
    assert key().admits("192.0.2.1")
    assert key().admits("a unix socket")


@pytest.mark.parametrize(
    ("address", "admitted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        (ipaddress.ip_address("10.1.2.3"), True),
        ("11.1.2.3", False),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("::ffff:11.1.2.3", False),
        ("10.1.2.3:80", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_a_key_with_networks_admits_only_their_addresses(address: Any, admitted: bool) -> None:
    assert key("10.0.0.0/8", "2001:db8::/32").admits(address) is admitted


# Finding one.


async def test_a_key_is_found_with_all_that_it_stands_for(store: Store) -> None:
    await put(store, line("bolt", OTHER, requests_per_hour=7, allowed_ips=["10.0.0.0/8"], name="b"))
    async with ApiKeyStore(store) as keyring:
        found = await keyring.find(OTHER)
    assert found
    assert (found.name, found.prefix, found.tenant) == ("b", "key-of-b", Tenant("bolt", "live"))
    assert found.credentials == Credentials("access-bolt", "secret-of-bolt")
    assert (found.requests_per_hour, found.allowed_ips) == (
        7,
        (ipaddress.ip_network("10.0.0.0/8"),),
    )


@pytest.mark.parametrize(
    "api_key", ["", "no such key", "k" * 513, "kéy", "\ud800", "\0", API_KEY[:-1]]
)
async def test_what_is_no_key_is_unknown(store: Store, api_key: str) -> None:
    async with ApiKeyStore(store) as keyring:
        assert await keyring.find(api_key) is None


async def test_text_that_cannot_be_a_key_costs_no_query(store: Store) -> None:
    async with ApiKeyStore(store) as keyring, counted() as asked:
        for text in ("", "k" * 513, "kéy"):
            assert await keyring.find(text) is None
    assert asked == []


async def test_a_known_key_costs_one_query_however_many_ask_at_once(store: Store) -> None:
    async with ApiKeyStore(store) as keyring, counted() as asked:
        found = await asyncio.gather(*(keyring.find(API_KEY) for _ in range(50)))
        found.append(await keyring.find(API_KEY))
    assert len(asked) == 1
    assert all(key == found[0] for key in found)


async def test_an_unknown_key_costs_one_query_for_some_seconds(store: Store) -> None:
    now = 0.0
    async with ApiKeyStore(store, clock=lambda: now) as keyring, counted() as asked:
        for _ in range(3):
            assert await keyring.find("guess") is None
        assert len(asked) == 1
        now = 6.0
        assert await keyring.find("guess") is None
        assert len(asked) == 2


async def test_guessing_keys_pushes_no_real_one_out(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        keyring._unknown = type(keyring._unknown)(10, 5)
        assert await keyring.find(API_KEY)
        for number in range(50):
            await keyring.find(f"guess-{number}")
        assert len(keyring._unknown) == 10
        async with counted() as asked:
            assert await keyring.find(API_KEY)
    assert asked == []


async def test_one_who_stops_waiting_does_not_take_the_answer_from_others(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        first = asyncio.create_task(keyring.find(API_KEY))
        second = asyncio.create_task(keyring.find(API_KEY))
        await asyncio.sleep(0)
        first.cancel()
        assert await second


async def test_a_keyring_holds_and_shows_no_key(store: Store) -> None:
    async with ApiKeyStore(store) as keyring:
        await keyring.find(API_KEY)
        await keyring.find("guess")
        kept = repr([*keyring._known.items(), *keyring._unknown.items(), keyring])
    for secret in (API_KEY, "guess", "secret-of-acme"):
        assert secret not in kept


async def test_a_key_hashed_with_an_earlier_encryption_key_is_found(
    store: Store, state: State
) -> None:
    add_key(state.encryption_key_file)
    async with open_store(state) as later, ApiKeyStore(later) as keyring:
        assert await keyring.find(API_KEY)


# Changes by another process.


async def revoked(store: Store) -> None:
    (held,) = await load_listed_keys(store)
    await revoke_key(store, held.id)


async def test_a_key_that_another_process_revokes_is_refused_within_two_seconds(
    store: Store, elsewhere: Store
) -> None:
    async def refused() -> bool:
        return await keyring.find(API_KEY) is None

    async with ApiKeyStore(store) as keyring:
        assert await keyring.find(API_KEY)
        await revoked(elsewhere)
        await until(refused, 2)


async def test_a_key_that_another_process_imports_is_found_though_it_was_unknown(
    store: Store, elsewhere: Store
) -> None:
    async def found() -> bool:
        return await keyring.find(OTHER) is not None

    async with ApiKeyStore(store, poll_seconds=SOON) as keyring:
        assert not await found()
        await put(elsewhere, line("bolt", OTHER))
        await until(found)


async def test_a_pair_that_another_process_replaces_is_used_without_a_query_by_a_request(
    store: Store, elsewhere: Store
) -> None:
    new = Credentials("new-access", "new-secret")

    async with ApiKeyStore(store, poll_seconds=1000) as keyring:
        assert await keyring.find(API_KEY)
        await replace_credentials(elsewhere, ACME, new)
        await keyring.refresh()
        async with counted() as asked:
            found = await keyring.find(API_KEY)
    assert found
    assert found.credentials == new
    assert asked == []


async def test_a_limit_that_another_process_changes_holds_for_known_keys(
    store: Store, elsewhere: Store
) -> None:
    async with ApiKeyStore(store, poll_seconds=1000) as keyring:
        await keyring.find(API_KEY)
        await put(elsewhere, line(requests_per_hour=3, allowed_ips=["192.0.2.0/24"]))
        await keyring.refresh()
        found = await keyring.find(API_KEY)
    assert found
    assert found.requests_per_hour == 3
    assert not found.admits("10.0.0.1")


async def test_an_answer_older_than_the_last_poll_is_not_kept(
    store: Store, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up reads a key; before it is kept, the key is revoked and a poll sees that."""
    read = store.read

    async def read_and_dawdle(body: Any, **options: Any) -> Any:
        answer = await read(body, **options)
        if not dawdled.is_set():
            dawdled.set()
            await go_on.wait()
        return answer

    dawdled, go_on = asyncio.Event(), asyncio.Event()
    async with ApiKeyStore(store, poll_seconds=1000) as keyring:
        monkeypatch.setattr(store, "read", read_and_dawdle)
        asking = asyncio.create_task(keyring.find(API_KEY))
        await dawdled.wait()
        # What a poll would see is put in its place.
        keyring._change_count += 1
        go_on.set()
        await asking
        keyring._change_count -= 1
        await revoked(elsewhere)
        assert await keyring.find(API_KEY) is None


async def test_a_database_put_back_to_an_earlier_state_is_read_anew(
    store: Store, elsewhere: Store
) -> None:
    async with ApiKeyStore(store, poll_seconds=1000) as keyring:
        await keyring.find(API_KEY)
        keyring._change_count += 5
        (held,) = await load_listed_keys(elsewhere)
        await revoke_key(elsewhere, held.id)
        await keyring.refresh()
        assert await keyring.find(API_KEY) is None


# When the database cannot be read.


async def test_known_keys_go_on_working_and_unknown_ones_are_neither_known_nor_unknown(
    store: Store, state: State
) -> None:
    async with ApiKeyStore(store, poll_seconds=SOON) as keyring:
        assert await keyring.find(API_KEY)
        broken(state)
        await asyncio.sleep(5 * SOON)
        assert await keyring.find(API_KEY)
        with pytest.raises(StoreUnavailable) as unavailable:
            await keyring.find(OTHER)
        assert OTHER not in str(unavailable.value)


async def test_known_keys_stop_working_ten_minutes_after_the_last_time_it_could_be_read(
    store: Store, state: State
) -> None:
    now = 0.0
    async with ApiKeyStore(store, poll_seconds=1000, clock=lambda: now) as keyring:
        assert await keyring.find(API_KEY)
        broken(state)
        now = 600.0
        assert await keyring.find(API_KEY)
        now = 601.0
        with pytest.raises(StoreUnavailable):
            await keyring.find(API_KEY)


async def test_polling_goes_on_after_the_database_was_locked_by_another(
    store: Store, elsewhere: Store, state: State
) -> None:
    async def refused() -> bool:
        return await keyring.find(API_KEY) is None

    async with ApiKeyStore(store, poll_seconds=SOON) as keyring:
        assert await keyring.find(API_KEY)
        other = sqlite3.connect(state.url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await asyncio.sleep(0.2)
        assert await keyring.find(API_KEY)
        other.execute("ROLLBACK")
        other.close()
        await revoked(elsewhere)
        await until(refused)


# Whose account a pair opens.


@dataclass
class Reply:
    status: int
    body: bytes


class Service:
    """Answers each access key with what was laid out for it."""

    def __init__(self, **replies: Reply) -> None:
        self.replies = replies
        self.asked: list[tuple[str, str, bytes | None, bool]] = []

    async def send(
        self,
        environment: str,
        pair: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
    ) -> Reply:
        self.asked.append((method, target, body, write))
        if pair.access_key not in self.replies:
            raise Unreachable("connection refused")
        return self.replies[pair.access_key]


def listing(*ids: str) -> Reply:
    return Reply(200, json.dumps({"ok": True, "recipients": [{"id": i} for i in ids]}).encode())


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (listing("R-1"), "accepted"),
        (listing(), "accepted; the account has no recipients, so it cannot be identified"),
        (
            Reply(401, b""),
            "refused, the service answered 401: wrong credentials, base_url, clock or vocabulary",
        ),
        (
            Reply(403, b""),
            "refused, the service answered 403: wrong credentials, base_url, clock or vocabulary",
        ),
        (Reply(503, b""), "unreachable, the service answered 503"),
        (Reply(200, b"<html>"), "unreachable, the response cannot be parsed"),
        (Reply(200, b"\xff"), "unreachable, the response cannot be parsed"),
        (Reply(200, b'{"recipients": [{}]}'), "unreachable, the response cannot be parsed"),
        (Reply(200, b'{"recipients": null}'), "unreachable, the response cannot be parsed"),
    ],
)
async def test_what_the_service_says_of_a_pair_is_told(reply: Reply, told: str) -> None:
    service = Service(mine=reply)
    assert (await probe_account(service, "live", Credentials("mine", "s"))).description == told
    assert (
        await probe_account(service, "live", Credentials("none", "s"))
    ).description == "unreachable, connection refused"


async def test_a_pair_is_looked_through_by_one_read() -> None:
    service = Service(mine=listing("R-1"))
    await probe_account(service, "live", Credentials("mine", "s"))
    target = "/v1/recipients?orderBy=createdAt&sortBy=asc&page=1&pageSize=10"
    assert service.asked == [("GET", target, None, False)]


def sees(*ids: str) -> AccountProbe:
    return AccountProbe("accepted", ids)


def test_merchants_who_see_the_same_recipient_share_an_account() -> None:
    bolt, acme_too = Tenant("bolt", "live"), Tenant("acme-too", "live")
    seen = {
        ACME: sees("R-1", "R-2"),
        bolt: sees("R-3"),
        acme_too: sees("R-2", "R-1"),
        Tenant("acme", "sandbox"): sees("R-1"),
    }
    assert find_shared_accounts(seen) == [(ACME, acme_too)]
    checked = [CredentialCheck(owner, "", (), sight) for owner, sight in seen.items()]
    assert describe_credential_problems(checked) == [
        "same account under two merchant names: acme live and acme-too live"
    ]


def test_refused_and_unreachable_pairs_are_findings_and_empty_accounts_are_none() -> None:
    checked = [
        CredentialCheck(ACME, "", (), AccountProbe("refused", reason="w")),
        CredentialCheck(Tenant("bolt", "live"), "", (), AccountProbe("unreachable", reason="v")),
        CredentialCheck(Tenant("core", "live"), "", (), sees()),
    ]
    assert describe_credential_problems(checked) == [
        "acme live: refused, w",
        "bolt live: unreachable, v",
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (sees("R-1"), sees("R-1"), None),
        (sees("R-1"), sees("R-1", "R-2"), None),
        (sees(), sees(), None),
        (sees("R-1"), AccountProbe("unreachable"), "could not be compared"),
        (AccountProbe("unreachable"), sees("R-1"), "could not be compared"),
        (sees("R-1", "R-2"), sees("R-2"), "another account"),
        (sees("R-1"), sees(), "another account"),
        (sees(), sees("R-1"), "has none"),
        (sees("R-1"), AccountProbe("refused"), "refuses the new credentials"),
        (AccountProbe("refused"), sees("R-1"), "cannot be compared"),
    ],
)
def test_a_new_pair_has_to_open_the_stored_pairs_account(
    old: AccountProbe, new: AccountProbe, why: str | None
) -> None:
    said = find_replacement_problem(old, new)
    assert (said is None) == (why is None)
    assert (why or "") in (said or "")
