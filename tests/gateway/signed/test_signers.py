"""Pairs found by their access key, and how soon a change of them is seen."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.key_rows import load_listed_keys, replace_credentials, revoke_key
from gateway.auth.keys import ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.config.settings import State
from gateway.signed_api.signers import Signer, SignerStore
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from tests.key_lines import put
from tests.states import recorded_statements

ACME = Tenant("acme", "live")


def line(api_key: str = "one", merchant: str = "acme", **more: Any) -> dict[str, Any]:
    pair = {"access_key": f"access-{merchant}", "secret_key": f"secret-of-{merchant}"}
    first = {"merchant": merchant, "environment": "live", "api_key": api_key, "name": api_key}
    return {**first, **pair, **more}


async def end(store: Store, name: str) -> None:
    await revoke_key(
        store, next(one.id for one in await load_listed_keys(store) if one.name == name)
    )


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state) as store:
        await put(store, line())
        yield store


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def keyring(store: Store, time: Time) -> AsyncIterator[ApiKeyStore]:
    """One that hears of changes when it is told to look."""
    async with ApiKeyStore(store, poll_seconds=1000, clock=time) as keyring:
        yield keyring


@pytest.fixture
async def signers(store: Store, keyring: ApiKeyStore) -> AsyncIterator[SignerStore]:
    async with SignerStore(store, keyring) as signers:
        yield signers


@pytest.fixture
def asked(store: Store) -> Iterator[list[Any]]:
    """The statements about pairs that the database is asked from now on."""
    with recorded_statements("access_key") as statements:
        yield statements


def named(signer: Signer) -> tuple[Tenant, Credentials]:
    return signer.tenant, signer.credentials


async def test_a_signer_is_found_with_the_pair_and_its_owner(signers: SignerStore) -> None:
    (one,) = await signers.find("access-acme")
    assert named(one) == (ACME, Credentials("access-acme", "secret-of-acme"))
    assert not one.is_revoked
    assert await signers.find("access-bolt") == ()


async def test_an_access_key_is_found_in_each_environment(
    store: Store, signers: SignerStore
) -> None:
    other = line("two", "bolt", environment="sandbox", access_key="access-acme")
    await put(store, other)
    live, sandbox = await signers.find("access-acme")
    assert named(live) == (ACME, Credentials("access-acme", "secret-of-acme"))
    assert named(sandbox) == (
        Tenant("bolt", "sandbox"),
        Credentials("access-acme", "secret-of-bolt"),
    )


async def test_a_known_one_costs_one_query_however_many_ask(
    signers: SignerStore, asked: list[Any]
) -> None:
    found = await asyncio.gather(*(signers.find("access-acme") for _ in range(50)))
    found.append(await signers.find("access-acme"))
    assert len(asked) == 1
    assert all(one == found[0] for one in found)


async def test_an_unknown_one_costs_one_query_until_something_changes(
    store: Store, keyring: ApiKeyStore, signers: SignerStore, asked: list[Any]
) -> None:
    for _ in range(3):
        assert await signers.find("access-bolt") == ()
    assert len(asked) == 1
    await put(store, line("two", "bolt"))
    await keyring.refresh()
    assert len(await signers.find("access-bolt")) == 1


async def test_one_that_goes_away_does_not_take_the_answer_from_the_others(
    signers: SignerStore,
) -> None:
    first, second = (asyncio.ensure_future(signers.find("access-acme")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == 1


# Addresses.

HERE, THERE = "10.0.0.0/8", "192.0.2.0/24"


def admits(signer: Signer, address: str) -> bool:
    return signer.admits(ipaddress.ip_address(address))


async def test_an_address_is_admitted_by_any_of_the_keys_in_use(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    await put(
        store,
        line("a", "bolt", allowed_ips=[HERE]),
        line("b", "bolt", allowed_ips=[THERE, "::ffff:198.51.100.0/120"]),
    )
    (one,) = await signers.find("access-bolt")
    assert admits(one, "10.1.2.3")
    assert admits(one, "192.0.2.7")
    assert admits(one, "198.51.100.7")
    assert not admits(one, "203.0.113.1")
    assert not one.admits(None)
    await end(store, "b")
    await keyring.refresh()
    (one,) = await signers.find("access-bolt")
    assert admits(one, "10.1.2.3")
    assert not admits(one, "192.0.2.7")


async def test_a_key_without_a_list_admits_every_address(
    store: Store, signers: SignerStore
) -> None:
    await put(store, line("two", allowed_ips=[HERE]))
    (one,) = await signers.find("access-acme")
    assert admits(one, "203.0.113.1")
    assert one.admits(None)


# Changes.


async def test_a_pair_whose_keys_are_all_revoked_is_revoked(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    await put(store, line("two"))
    for name, is_revoked in (("one", False), ("two", True)):
        await signers.find("access-acme")
        await end(store, name)
        await keyring.refresh()
        (one,) = await signers.find("access-acme")
        assert one.is_revoked == is_revoked
    assert not one.admits(None)


async def test_a_rotated_pair_is_found_by_its_new_access_key_alone(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    assert await signers.find("access-acme")
    assert await signers.find("new") == ()
    await replace_credentials(store, ACME, Credentials("new", "newer"))
    await keyring.refresh()
    assert await signers.find("access-acme") == ()
    (one,) = await signers.find("new")
    assert named(one) == (ACME, Credentials("new", "newer"))


async def test_a_new_secret_under_the_same_access_key_is_seen(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    await signers.find("access-acme")
    await replace_credentials(store, ACME, Credentials("access-acme", "newer"))
    await keyring.refresh()
    (one,) = await signers.find("access-acme")
    assert one.credentials.secret_key == "newer"


async def test_an_access_key_that_is_imported_in_the_other_environment_too_is_seen(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    assert len(await signers.find("access-acme")) == 1
    await put(store, line("two", "bolt", environment="sandbox", access_key="access-acme"))
    await keyring.refresh()
    assert len(await signers.find("access-acme")) == 2


async def test_what_did_not_change_is_not_asked_for_again(
    store: Store, signers: SignerStore, keyring: ApiKeyStore, asked: list[Any]
) -> None:
    await signers.find("access-acme")
    await put(store, line("two", "bolt"))
    await keyring.refresh()
    asked.clear()
    assert await signers.find("access-acme")
    assert asked == []


async def test_an_answer_that_a_poll_overtook_is_not_kept(
    store: Store, signers: SignerStore, keyring: ApiKeyStore, asked: list[Any]
) -> None:
    keyring._change_count += 1
    for number in (1, 2):
        assert await signers.find("access-acme")
        assert len(asked) == number


async def test_an_earlier_state_of_the_database_makes_nobody_known(
    signers: SignerStore, keyring: ApiKeyStore, asked: list[Any]
) -> None:
    await signers.find("access-acme")
    keyring._change_count += 5
    await keyring.refresh()
    asked.clear()
    assert await signers.find("access-acme")
    assert len(asked) == 1


# Without a database.


async def test_known_ones_go_on_as_long_as_api_keys_do(
    state: State, signers: SignerStore, time: Time
) -> None:
    await signers.find("access-acme")
    Path(state.url.removeprefix("sqlite:///")).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnavailable):
        await signers.find("access-bolt")
    time.now = 599.0
    assert await signers.find("access-acme")
    time.now = 601.0
    with pytest.raises(StoreUnavailable):
        await signers.find("access-acme")


# Secrets.


async def test_nothing_shows_a_secret_or_an_access_key(signers: SignerStore) -> None:
    (one,) = await signers.find("access-acme")
    for shown in (repr(one), repr(signers)):
        assert "secret-of" not in shown
        assert "access-acme" not in shown
