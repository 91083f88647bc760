from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from gateway.auth.key_import import ImportResult, import_keys
from gateway.auth.key_lines import ImportRefused, parse_key_lines
from gateway.auth.key_rows import (
    find_single_key,
    load_credentials,
    load_listed_keys,
    replace_credentials,
    revoke_key,
)
from gateway.auth.signing import Credentials, extract_displayable_key_prefix
from gateway.config import OperatorError
from gateway.config.settings import State
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.key_file import add_encryption_key
from tests.key_lines import build_key_line
from tests.state import execute

ACME, BOLT = build_key_line(), build_key_line("bolt")
SECOND_ACME_KEY = {**ACME, "api_key": "another-of-acme-0123456789abcdef"}


def dump_key_lines(*keys: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(key).encode() for key in keys)


async def import_lines(
    store: Store, *keys: dict[str, Any], is_reactivating: bool = False
) -> ImportResult:
    return await import_keys(
        store, parse_key_lines(dump_key_lines(*keys)), reactivate=is_reactivating
    )


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state) as store:
        yield store


# Valid and invalid files.


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"merchant": ""}, "line 2: merchant: "),
        ({"merchant": " acme"}, "line 2: merchant: "),
        ({"merchant": None}, "line 2: merchant: "),
        ({"environment": "test-hunter2"}, "line 2: environment: must be 'live' or 'sandbox'"),
        ({"api_key": "hunter2 with space"}, "line 2: api_key: must be visible ASCII"),
        ({"api_key": "hunter2é"}, "line 2: api_key: must be visible ASCII"),
        ({"api_key": "hunter2" * 100}, "line 2: api_key: "),
        ({"api_key": 12345}, "line 2: api_key: "),
        ({"access_key": "hunter2:x"}, "line 2: access_key: must not contain a colon"),
        ({"secret_key": ""}, "line 2: secret_key: "),
        ({"secret_key": "hunter2\n"}, "line 2: secret_key: "),
        ({"secret_key": "hunter2\ud800"}, "line 2: secret_key: "),
        ({"requests_per_hour": 0}, "line 2: requests_per_hour: "),
        ({"requests_per_hour": True}, "line 2: requests_per_hour: "),
        ({"requests_per_hour": "10"}, "line 2: requests_per_hour: must be a whole number"),
        ({"requests_per_hour": 10**12}, "line 2: requests_per_hour: "),
        ({"allowed_ips": "10.0.0.1"}, "line 2: allowed_ips: "),
        ({"allowed_ips": ["10.0.0.1", "hunter2"]}, "line 2: allowed_ips.1: must be an address"),
        ({"hourly": "hunter2"}, "line 2: hourly: unknown field"),
        ({"hour\nly": "hunter2"}, r"line 2: 'hour\\nly': unknown field"),
    ],
)
def test_errors_are_reported_by_line_and_field_without_values(
    change: dict[str, Any], expected_text: str
) -> None:
    with pytest.raises(ImportRefused) as error:
        parse_key_lines(dump_key_lines(ACME, {**BOLT, **change}))
    assert str(error.value).startswith(expected_text.replace("\\\\", "\\"))
    assert "hunter2" not in str(error.value)
    assert "\n" not in str(error.value)


def test_each_missing_field_is_named() -> None:
    with pytest.raises(ImportRefused, match=r"^line 1: ") as error:
        parse_key_lines(b"{}")
    for field in ("merchant", "environment", "api_key", "access_key", "secret_key"):
        assert f"{field}: missing" in str(error.value)


@pytest.mark.parametrize(
    ("line", "expected_text"),
    [
        (b"hunter2", "not JSON"),
        (b'["hunter2"]', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"merchant": "hunter2"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"\xff"', "not UTF-8 text"),
        (b'{"api_key": "hunter2", "api_key": "hunter2"}', "api_key: duplicate field"),
    ],
)
def test_non_object_line_is_reported_by_number(line: bytes, expected_text: str) -> None:
    with pytest.raises(ImportRefused) as error:
        parse_key_lines(dump_key_lines(ACME) + b"\n\n" + line)
    assert str(error.value) == f"line 3: {expected_text}"


def test_empty_file_is_an_error() -> None:
    with pytest.raises(ImportRefused, match="no key"):
        parse_key_lines(b"\n  \n")


def test_blank_lines_crlf_and_byte_order_mark_are_ignored() -> None:
    data = b"\xef\xbb\xbf\r\n" + dump_key_lines(ACME) + b"\r\n\r\n" + dump_key_lines(BOLT) + b"\r\n"
    assert [line.number for line in parse_key_lines(data)] == [2, 4]


@pytest.mark.parametrize(
    ("second", "expected_text"),
    [
        (ACME, "line 2: api_key: line 1 already has this key"),
        ({**BOLT, "api_key": ACME["api_key"]}, "line 2: api_key: line 1 already has this key"),
        (
            {**SECOND_ACME_KEY, "secret_key": "other"},
            "line 2: access_key: line 1 has other credentials",
        ),
        (
            {**SECOND_ACME_KEY, "access_key": "other"},
            "line 2: access_key: line 1 has other credentials",
        ),
        (
            {**BOLT, "access_key": "access-acme"},
            "line 2: access_key: line 1 has this access key for another",
        ),
        ({**SECOND_ACME_KEY, "name": "main"}, "line 2: name: line 1 already has this name"),
    ],
)
def test_contradicting_lines_are_refused(second: dict[str, Any], expected_text: str) -> None:
    with pytest.raises(ImportRefused, match=expected_text):
        parse_key_lines(dump_key_lines({**ACME, "name": "main"}, second))


def test_networks_are_stored_in_canonical_form() -> None:
    (line,) = parse_key_lines(
        dump_key_lines({**ACME, "allowed_ips": ["10.1.2.3/8", "192.0.2.7", "2001:DB8::1"]})
    )
    assert line.key.allowed_ips == ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::1/128"]


@pytest.mark.parametrize(
    ("api_key", "prefix"),
    [("k" * 40, "k" * 8), ("k" * 32, "k" * 8), ("k" * 31, "k" * 7), ("kkkk", "k"), ("kkk", "")],
)
def test_prefix_is_at_most_eight_characters_and_a_quarter_of_the_key(
    api_key: str, prefix: str
) -> None:
    assert extract_displayable_key_prefix(api_key) == prefix


# Stored keys.


async def test_keys_are_imported_and_named_after_their_tenant(store: Store) -> None:
    result = await import_lines(store, ACME, SECOND_ACME_KEY, {**BOLT, "name": "acme-live-2"})
    assert (result.new, result.changed, result.unchanged) == (3, 0, 0)
    assert result.keys_by_tenant == {Tenant("acme", "live"): 2, Tenant("bolt", "live"): 1}
    names = [key.name for key in await load_listed_keys(store)]
    assert names == ["acme-live", "acme-live-3", "acme-live-2"]
    assert await load_credentials(store, Tenant("acme", "live")) == Credentials(
        "access-acme", "secret-of-acme"
    )


async def test_key_is_updated_by_its_line_and_null_resets(store: Store) -> None:
    await import_lines(store, {**ACME, "requests_per_hour": 5, "allowed_ips": ["10.0.0.1"]})
    await import_lines(store, {**ACME, "name": "renamed"})
    (key,) = await load_listed_keys(store)
    # A line without an allow-list must not remove a stored one.
    assert (key.name, key.requests_per_hour) == ("renamed", 5)
    assert key.allowed_ips == ("10.0.0.1/32",)
    await import_lines(store, {**ACME, "requests_per_hour": None, "allowed_ips": []})
    (key,) = await load_listed_keys(store)
    assert (key.requests_per_hour, key.allowed_ips) == (None, ())


@pytest.mark.parametrize(
    ("second", "expected_text"),
    [
        (
            {**ACME, "merchant": "bolt", "access_key": "b"},
            "api_key: the key already belongs to another merchant",
        ),
        (
            {**ACME, "environment": "sandbox", "access_key": "b"},
            "api_key: the key already belongs to another",
        ),
        (
            {**SECOND_ACME_KEY, "secret_key": "typo"},
            "access_key: other credentials .* rotate-secret",
        ),
        (
            {**SECOND_ACME_KEY, "access_key": "typo"},
            "access_key: other credentials .* rotate-secret",
        ),
        ({**BOLT, "access_key": "access-acme"}, "access_key: another merchant already has"),
        ({**BOLT, "name": "main"}, "name: another key has this name"),
    ],
)
async def test_line_that_contradicts_stored_keys_imports_nothing(
    store: Store, second: dict[str, Any], expected_text: str
) -> None:
    await import_lines(store, {**ACME, "name": "main"})
    keys_before = await load_listed_keys(store)
    valid_line = {**BOLT, "merchant": "fine", "access_key": "fine", "api_key": "fine-fine-fine"}
    with pytest.raises(ImportRefused, match=f"line 2: {expected_text}") as error:
        await import_lines(store, valid_line, second)
    assert "typo" not in str(error.value)
    assert await load_listed_keys(store) == keys_before


async def test_access_key_may_exist_in_both_environments(store: Store) -> None:
    await import_lines(store, ACME, {**SECOND_ACME_KEY, "environment": "sandbox"})
    assert len(await load_listed_keys(store)) == 2


async def test_key_hashed_with_earlier_encryption_key_is_recognized(state: State) -> None:
    async with open_store(state) as store:
        await import_lines(store, ACME)
    add_encryption_key(state.encryption_key_file)
    async with open_store(state) as store:
        result = await import_lines(store, ACME, BOLT)
        assert (result.new, result.unchanged) == (1, 1)
        assert await load_credentials(store, Tenant("acme", "live")) == Credentials(
            "access-acme", "secret-of-acme"
        )


async def test_concurrent_imports_are_serialized(state: State) -> None:
    async with open_store(state) as store, open_store(state) as second:
        key_lines = [{**ACME, "api_key": f"key {number}".replace(" ", "-")} for number in range(8)]
        await asyncio.gather(
            *(
                import_lines((store, second)[number % 2], key)
                for number, key in enumerate(key_lines)
            )
        )
        names = {key.name for key in await load_listed_keys(store)}
    assert names == {"acme-live", *(f"acme-live-{number}" for number in range(2, 9))}


# Credentials.


async def test_replaced_credentials_apply_to_all_keys_of_tenant(store: Store) -> None:
    await import_lines(store, ACME, SECOND_ACME_KEY, BOLT)
    await replace_credentials(
        store, Tenant("acme", "live"), Credentials("new-access", "new-secret")
    )
    assert [key.access_key for key in await load_listed_keys(store)] == [
        "new-access",
        "new-access",
        "access-bolt",
    ]
    assert await load_credentials(store, Tenant("acme", "live")) == Credentials(
        "new-access", "new-secret"
    )


async def test_secret_copied_to_another_row_does_not_decrypt(store: Store) -> None:
    await import_lines(store, ACME, BOLT)
    copy_secret_statement = "UPDATE tenant_credentials SET secret = (SELECT secret FROM tenant_credentials WHERE merchant = 'acme')"
    await execute(store, text(copy_secret_statement))
    with pytest.raises(StoreUnavailable, match="secret of bolt live"):
        await load_credentials(store, Tenant("bolt", "live"))


async def test_name_precedes_prefix_and_active_keys_precede_revoked_ones(
    store: Store,
) -> None:
    await import_lines(store, {**ACME, "name": "key-of-b"}, SECOND_ACME_KEY, BOLT)
    keys = await load_listed_keys(store)

    assert find_single_key(keys, "key-of-b").name == "key-of-b"
    assert find_single_key(keys, "another").name == "acme-live"
    with pytest.raises(OperatorError, match="2 keys have this prefix: key-of-b, bolt-live"):
        find_single_key(keys, "key-of")
    for too_little in ("", "key"):
        with pytest.raises(OperatorError, match="no key has this name"):
            find_single_key(keys, too_little)
    await revoke_key(store, find_single_key(keys, "bolt-live").id)
    keys = await load_listed_keys(store)
    assert find_single_key(keys, "key-of").name == "key-of-b"
    assert find_single_key(keys, "bolt-live").name == "bolt-live"


async def test_key_changes_are_audited_once_without_secrets(store: Store) -> None:
    await import_lines(store, {**ACME, "name": "first"}, SECOND_ACME_KEY, BOLT)
    await import_lines(store, {**ACME, "name": "first"}, SECOND_ACME_KEY, BOLT)
    acme, bolt = Tenant("acme", "live"), Tenant("bolt", "live")
    await replace_credentials(store, bolt, Credentials("new-access", "new-secret"))
    first = find_single_key(await load_listed_keys(store), "first").id
    for _ in range(2):
        await revoke_key(store, first)
    audited_actions = [(event.scope, event.action) for event in await list_audit_events(store)]
    assert sorted(audited_actions[:2]) == [(acme, "imported 2 keys"), (bolt, "imported 1 key")]
    assert audited_actions[2:] == [
        (bolt, "replaced the credentials"),
        (acme, "revoked the key first"),
    ]
