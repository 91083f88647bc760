"""The cases of test_keys.py in which PostgreSQL could differ from SQLite."""

from __future__ import annotations

from gateway.auth.key_rows import load_listed_keys, replace_credentials, revoke_key
from gateway.auth.keys import ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.config.settings import State
from gateway.signed_api.senders import SignerStore
from gateway.storage import Tenant, open_store
from tests.key_lines import build_key_line, import_keys_into

API_KEY = build_key_line()["api_key"]


async def test_key_cache_follows_import_rotation_and_revocation_by_another_instance(
    state: State,
) -> None:
    async with (
        open_store(state) as first_store,
        open_store(state) as second_store,
        ApiKeyStore(first_store) as keyring,
    ):
        assert await keyring.find_active_key(API_KEY) is None

        await import_keys_into(second_store, build_key_line())
        await keyring.refresh()
        key = await keyring.find_active_key(API_KEY)
        assert key
        assert key.credentials == Credentials("access-acme", "secret-of-acme")

        await replace_credentials(second_store, Tenant("acme", "live"), Credentials("new", "newer"))
        await keyring.refresh()
        key = await keyring.find_active_key(API_KEY)
        assert key
        assert key.credentials == Credentials("new", "newer")

        (keys,) = await load_listed_keys(second_store)
        await revoke_key(second_store, keys.id)
        await keyring.refresh()
        assert await keyring.find_active_key(API_KEY) is None


async def test_signer_cache_follows_import_rotation_and_revocation_by_another_instance(
    state: State,
) -> None:
    async with (
        open_store(state) as first_store,
        open_store(state) as second_store,
        ApiKeyStore(first_store) as keyring,
        SignerStore(first_store, keyring) as signers,
    ):
        assert await signers.find_signers("access-acme") == ()

        await import_keys_into(second_store, build_key_line())
        await keyring.refresh()
        (signer,) = await signers.find_signers("access-acme")
        assert signer.credentials == Credentials("access-acme", "secret-of-acme")

        await replace_credentials(second_store, Tenant("acme", "live"), Credentials("new", "newer"))
        await keyring.refresh()
        assert await signers.find_signers("access-acme") == ()
        (signer,) = await signers.find_signers("new")
        assert signer.credentials == Credentials("new", "newer")

        (keys,) = await load_listed_keys(second_store)
        await revoke_key(second_store, keys.id)
        await keyring.refresh()
        (signer,) = await signers.find_signers("new")
        assert signer.is_revoked
