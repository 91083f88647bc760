from __future__ import annotations

import base64
import os

import pytest

from gateway.storage import EncryptionContext, EncryptionKeys, StoreUnavailable

CONTEXT = EncryptionContext("pairs", "acme", "live", "secret")


def build_encryption_keys(*ids: str) -> EncryptionKeys:
    return EncryptionKeys({key_id: os.urandom(32) for key_id in ids})


def test_encrypted_value_decrypts_in_its_row() -> None:
    encryption_keys = build_encryption_keys("a")
    assert (
        encryption_keys.decrypt(encryption_keys.encrypt("höchst geheim", CONTEXT), CONTEXT)
        == "höchst geheim"
    )


@pytest.mark.parametrize("part", EncryptionContext._fields)
def test_encrypted_value_does_not_decrypt_in_another_row(part: str) -> None:
    encryption_keys = build_encryption_keys("a")
    ciphertext = encryption_keys.encrypt("secret", CONTEXT)
    with pytest.raises(StoreUnavailable):
        encryption_keys.decrypt(ciphertext, CONTEXT._replace(**{part: "other"}))


def test_parts_of_a_context_cannot_be_split_differently() -> None:
    encryption_keys = build_encryption_keys("a")
    ciphertext = encryption_keys.encrypt(
        "secret", EncryptionContext("pairs", 'acme", "li', "ve", "secret")
    )
    with pytest.raises(StoreUnavailable):
        encryption_keys.decrypt(ciphertext, EncryptionContext("pairs", "acme", "live", "secret"))


def test_single_flipped_bit_is_detected() -> None:
    encryption_keys = build_encryption_keys("a")
    key_id, _, encoded_ciphertext = encryption_keys.encrypt("secret", CONTEXT).partition(":")
    raw_ciphertext = bytearray(base64.b64decode(encoded_ciphertext))
    raw_ciphertext[-1] ^= 1
    with pytest.raises(StoreUnavailable):
        encryption_keys.decrypt(f"{key_id}:{base64.b64encode(raw_ciphertext).decode()}", CONTEXT)


@pytest.mark.parametrize(
    "invalid_ciphertext", ["", "a", "a:", "a:!", "b:AAAA", "a:AAAA", "a:" + "A" * 64]
)
def test_unencrypted_value_is_refused_without_quoting_it(invalid_ciphertext: str) -> None:
    with pytest.raises(StoreUnavailable) as error:
        build_encryption_keys("a").decrypt(invalid_ciphertext, CONTEXT)
    assert "AAAA" not in str(error.value)


def test_encrypting_twice_gives_different_texts() -> None:
    encryption_keys = build_encryption_keys("a")
    assert encryption_keys.encrypt("secret", CONTEXT) != encryption_keys.encrypt("secret", CONTEXT)


def test_last_key_encrypts_and_every_key_decrypts() -> None:
    first = os.urandom(32)
    old_keys = EncryptionKeys({"one": first})
    extended_keys = EncryptionKeys({"one": first, "two": os.urandom(32)})
    assert extended_keys.encrypt("x", CONTEXT).startswith("two:")
    assert extended_keys.decrypt(old_keys.encrypt("x", CONTEXT), CONTEXT) == "x"
    with pytest.raises(StoreUnavailable):
        old_keys.decrypt(extended_keys.encrypt("x", CONTEXT), CONTEXT)


def test_api_key_is_hashed_with_each_key_newest_first() -> None:
    encryption_keys = build_encryption_keys("one", "two")
    digests = encryption_keys.list_api_key_digests("api key")
    assert [digest.key_id for digest in digests] == ["two", "one"]
    assert len({digest.value for digest in digests}) == 2
    assert digests == encryption_keys.list_api_key_digests("api key")
    assert digests != encryption_keys.list_api_key_digests("api kez")


def test_each_purpose_has_its_own_stable_key() -> None:
    encryption_keys = EncryptionKeys({"one": bytes(32)})
    derived_keys = [
        encryption_keys.derive_keys_by_id(purpose)["one"]
        for purpose in ("secrets", "api keys", "stand-in ids")
    ]
    assert len(set(derived_keys)) == 3
    # Stored rows depend on these: HKDF-SHA256, no salt, info "payout-gateway api keys".
    assert encryption_keys.derive_keys_by_id("api keys") == EncryptionKeys(
        {"one": bytes(32)}
    ).derive_keys_by_id("api keys")
    assert bytes(32) not in derived_keys


def test_repr_hides_keys() -> None:
    key = b"k" * 32
    assert repr(EncryptionKeys({"one": key})) == "EncryptionKeys(one)"
