"""What test_keys.py says of SQLite, where PostgreSQL could differ."""

from __future__ import annotations

import json

from gateway.keys import Keyring
from gateway.settings import State
from gateway.signed.signers import Signers
from gateway.signing import Pair
from gateway.store import Owner, open_store
from gateway.store.key_import import import_keys
from gateway.store.key_lines import read_lines
from gateway.store.key_rows import listed_keys, replace_pair, revoke

API_KEY = "key-of-acme-0123456789abcdefghij"
LINE = {
    "merchant": "acme",
    "environment": "live",
    "api_key": API_KEY,
    "access_key": "access-acme",
    "secret_key": "secret-of-acme",
}


async def test_a_keyring_follows_import_rotation_and_revocation_by_another_instance(
    state: State,
) -> None:
    async with (
        open_store(state) as here,
        open_store(state) as there,
        Keyring(here, poll_seconds=1000) as keyring,
    ):
        assert await keyring.find(API_KEY) is None

        await import_keys(there, read_lines(json.dumps(LINE).encode()))
        await keyring.refresh()
        found = await keyring.find(API_KEY)
        assert found
        assert found.pair == Pair("access-acme", "secret-of-acme")

        await replace_pair(there, Owner("acme", "live"), Pair("new", "newer"))
        await keyring.refresh()
        found = await keyring.find(API_KEY)
        assert found
        assert found.pair == Pair("new", "newer")

        (listed,) = await listed_keys(there)
        await revoke(there, listed.id)
        await keyring.refresh()
        assert await keyring.find(API_KEY) is None


async def test_signers_follow_import_rotation_and_revocation_by_another_instance(
    state: State,
) -> None:
    async with (
        open_store(state) as here,
        open_store(state) as there,
        Keyring(here, poll_seconds=1000) as keyring,
        Signers(here, keyring) as signers,
    ):
        assert await signers.find("access-acme") == ()

        await import_keys(there, read_lines(json.dumps(LINE).encode()))
        await keyring.refresh()
        (one,) = await signers.find("access-acme")
        assert one.pair == Pair("access-acme", "secret-of-acme")

        await replace_pair(there, Owner("acme", "live"), Pair("new", "newer"))
        await keyring.refresh()
        assert await signers.find("access-acme") == ()
        (one,) = await signers.find("new")
        assert one.pair == Pair("new", "newer")

        (listed,) = await listed_keys(there)
        await revoke(there, listed.id)
        await keyring.refresh()
        (one,) = await signers.find("new")
        assert one.is_revoked
