from __future__ import annotations

import base64
import os

import pytest

from gateway.storage import EncryptionContext, EncryptionKeys, StoreUnavailable

CONTEXT = EncryptionContext("pairs", "acme", "live", "secret")


def build_encryption_keys(*ids: str) -> EncryptionKeys:
    return EncryptionKeys({key_id: os.urandom(32) for key_id in ids})


def test_encrypted_value_decrypts_in_its_row() -> None:
    some = build_encryption_keys("a")
    assert some.decrypt(some.encrypt("höchst geheim", CONTEXT), CONTEXT) == "höchst geheim"


@pytest.mark.parametrize("part", EncryptionContext._fields)
def test_encrypted_value_does_not_decrypt_in_another_row(part: str) -> None:
    some = build_encryption_keys("a")
    sealed = some.encrypt("secret", CONTEXT)
    with pytest.raises(StoreUnavailable):
        some.decrypt(sealed, CONTEXT._replace(**{part: "other"}))


def test_parts_of_a_context_cannot_be_split_differently() -> None:
    some = build_encryption_keys("a")
    sealed = some.encrypt("secret", EncryptionContext("pairs", 'acme", "li', "ve", "secret"))
    with pytest.raises(StoreUnavailable):
        some.decrypt(sealed, EncryptionContext("pairs", "acme", "live", "secret"))


def test_single_flipped_bit_is_detected() -> None:
    some = build_encryption_keys("a")
    key_id, _, packed = some.encrypt("secret", CONTEXT).partition(":")
    raw = bytearray(base64.b64decode(packed))
    raw[-1] ^= 1
    with pytest.raises(StoreUnavailable):
        some.decrypt(f"{key_id}:{base64.b64encode(raw).decode()}", CONTEXT)


@pytest.mark.parametrize("sealed", ["", "a", "a:", "a:!", "b:AAAA", "a:AAAA", "a:" + "A" * 64])
def test_unencrypted_value_is_refused_without_quoting_it(sealed: str) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        build_encryption_keys("a").decrypt(sealed, CONTEXT)
    assert "AAAA" not in str(refused.value)


def test_encrypting_twice_gives_different_texts() -> None:
    some = build_encryption_keys("a")
    assert some.encrypt("secret", CONTEXT) != some.encrypt("secret", CONTEXT)


def test_last_key_encrypts_and_every_key_decrypts() -> None:
    first = os.urandom(32)
    before = EncryptionKeys({"one": first})
    after = EncryptionKeys({"one": first, "two": os.urandom(32)})
    assert after.encrypt("x", CONTEXT).startswith("two:")
    assert after.decrypt(before.encrypt("x", CONTEXT), CONTEXT) == "x"
    with pytest.raises(StoreUnavailable):
        before.decrypt(after.encrypt("x", CONTEXT), CONTEXT)


def test_api_key_is_hashed_with_each_key_newest_first() -> None:
    some = build_encryption_keys("one", "two")
    digests = some.list_digests("api key")
    assert [digest.key_id for digest in digests] == ["two", "one"]
    assert len({digest.value for digest in digests}) == 2
    assert digests == some.list_digests("api key")
    assert digests != some.list_digests("api kez")


def test_each_purpose_has_its_own_stable_key() -> None:
    some = EncryptionKeys({"one": bytes(32)})
    derived = [
        some.derive_keys(purpose)["one"] for purpose in ("secrets", "api keys", "stand-in ids")
    ]
    assert len(set(derived)) == 3
    # Stored rows depend on these: HKDF-SHA256, no salt, info "payout-gateway api keys".
    assert some.derive_keys("api keys") == EncryptionKeys({"one": bytes(32)}).derive_keys(
        "api keys"
    )
    assert bytes(32) not in derived


def test_repr_hides_keys() -> None:
    key = b"k" * 32
    assert repr(EncryptionKeys({"one": key})) == "EncryptionKeys(one)"
