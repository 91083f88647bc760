"""Look-up of credentials by access key, and how soon changes take effect."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.auth.key_rows import replace_credentials
from gateway.auth.keys import ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.config.settings import State
from gateway.signed_api.senders import Signer, SignerStore
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from tests.key_lines import build_key_line, import_keys_into
from tests.state import break_reads, record_statements

ACME = Tenant("acme", "live")


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state) as store:
        await import_keys_into(store, build_key_line())
        yield store


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def keyring(store: Store, clock: FakeClock) -> AsyncIterator[ApiKeyStore]:
    """A key cache that sees changes only on an explicit refresh."""
    async with ApiKeyStore(store, clock=clock) as keyring:
        yield keyring


@pytest.fixture
async def signers(store: Store, keyring: ApiKeyStore) -> AsyncIterator[SignerStore]:
    async with SignerStore(store, keyring) as signers:
        yield signers


@pytest.fixture
def queries(store: Store) -> Iterator[list[Any]]:
    """Statements about credentials that reach the database during the test."""
    with record_statements("access_key") as statements:
        yield statements


async def test_known_signer_costs_one_query_for_any_number_of_callers(
    signers: SignerStore, queries: list[Any]
) -> None:
    signers_found = await asyncio.gather(*(signers.find_signers("access-acme") for _ in range(50)))
    signers_found.append(await signers.find_signers("access-acme"))
    assert len(queries) == 1
    assert all(signer == signers_found[0] for signer in signers_found)


async def test_unknown_signer_costs_one_query_until_keys_change(
    store: Store, keyring: ApiKeyStore, signers: SignerStore, queries: list[Any]
) -> None:
    for _ in range(3):
        assert await signers.find_signers("access-bolt") == ()
    assert len(queries) == 1
    await import_keys_into(store, build_key_line("bolt"))
    await keyring.refresh()
    assert len(await signers.find_signers("access-bolt")) == 1


async def test_cancelled_caller_does_not_cancel_lookup_for_others(
    signers: SignerStore,
) -> None:
    first, second = (asyncio.ensure_future(signers.find_signers("access-acme")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == 1


# Addresses.

FIRST_NETWORK = "10.0.0.0/8"


def admits_address(signer: Signer, address: str) -> bool:
    return signer.admits(ipaddress.ip_address(address))


async def test_mapped_network_admits_its_ipv4_addresses(store: Store, signers: SignerStore) -> None:
    line = build_key_line("bolt", allowed_ips=[FIRST_NETWORK, "::ffff:198.51.100.0/120"])
    await import_keys_into(store, line)
    (signer,) = await signers.find_signers("access-bolt")
    assert admits_address(signer, "198.51.100.7")
    assert not admits_address(signer, "203.0.113.1")
    assert not signer.admits(None)


async def test_key_without_address_list_admits_every_address(
    store: Store, signers: SignerStore
) -> None:
    await import_keys_into(store, build_key_line(api_key="two", allowed_ips=[FIRST_NETWORK]))
    (signer,) = await signers.find_signers("access-acme")
    assert admits_address(signer, "203.0.113.1")
    assert signer.admits(None)


# Changes.


async def test_new_secret_of_same_access_key_takes_effect(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    await signers.find_signers("access-acme")
    await replace_credentials(store, ACME, Credentials("access-acme", "newer"))
    await keyring.refresh()
    (signer,) = await signers.find_signers("access-acme")
    assert signer.credentials.secret_key == "newer"


async def test_access_key_imported_in_second_environment_is_found(
    store: Store, signers: SignerStore, keyring: ApiKeyStore
) -> None:
    assert len(await signers.find_signers("access-acme")) == 1
    await import_keys_into(
        store, build_key_line("bolt", environment="sandbox", access_key="access-acme")
    )
    await keyring.refresh()
    assert len(await signers.find_signers("access-acme")) == 2


async def test_unchanged_signer_is_not_queried_again(
    store: Store, signers: SignerStore, keyring: ApiKeyStore, queries: list[Any]
) -> None:
    await signers.find_signers("access-acme")
    await import_keys_into(store, build_key_line("bolt"))
    await keyring.refresh()
    queries.clear()
    assert await signers.find_signers("access-acme")
    assert queries == []


async def test_answer_older_than_last_poll_is_not_cached(
    store: Store, signers: SignerStore, keyring: ApiKeyStore, queries: list[Any]
) -> None:
    keyring.change_count += 1
    for number in (1, 2):
        assert await signers.find_signers("access-acme")
        assert len(queries) == number


async def test_restored_database_clears_cached_signers(
    signers: SignerStore, keyring: ApiKeyStore, queries: list[Any]
) -> None:
    await signers.find_signers("access-acme")
    keyring.change_count += 5
    await keyring.refresh()
    queries.clear()
    assert await signers.find_signers("access-acme")
    assert len(queries) == 1


# Without a database.


async def test_known_signers_work_during_outage_as_long_as_api_keys(
    signers: SignerStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await signers.find_signers("access-acme")
    break_reads(monkeypatch)
    with pytest.raises(StoreUnavailable):
        await signers.find_signers("access-bolt")
    clock.now = 599.0
    assert await signers.find_signers("access-acme")
    clock.now = 601.0
    with pytest.raises(StoreUnavailable):
        await signers.find_signers("access-acme")


# Secrets.


async def test_repr_shows_no_secret_and_no_access_key(signers: SignerStore) -> None:
    (signer,) = await signers.find_signers("access-acme")
    for representation in (repr(signer), repr(signers)):
        assert "secret-of" not in representation
        assert "access-acme" not in representation
