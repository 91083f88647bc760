from __future__ import annotations

import base64
import os

import pytest

from gateway.storage import EncryptionKeys, Place, StoreUnavailable

HERE = Place("pairs", "acme", "live", "secret")


def keys(*ids: str) -> EncryptionKeys:
    return EncryptionKeys({key_id: os.urandom(32) for key_id in ids})


def test_what_is_sealed_opens_in_its_place() -> None:
    some = keys("a")
    assert some.unseal(some.seal("höchst geheim", HERE), HERE) == "höchst geheim"


@pytest.mark.parametrize("part", Place._fields)
def test_what_is_sealed_opens_in_no_other_row(part: str) -> None:
    some = keys("a")
    sealed = some.seal("secret", HERE)
    with pytest.raises(StoreUnavailable):
        some.unseal(sealed, HERE._replace(**{part: "other"}))


def test_parts_of_a_place_cannot_be_cut_apart_elsewhere() -> None:
    some = keys("a")
    sealed = some.seal("secret", Place("pairs", 'acme", "li', "ve", "secret"))
    with pytest.raises(StoreUnavailable):
        some.unseal(sealed, Place("pairs", "acme", "live", "secret"))


def test_one_changed_bit_is_noticed() -> None:
    some = keys("a")
    key_id, _, packed = some.seal("secret", HERE).partition(":")
    raw = bytearray(base64.b64decode(packed))
    raw[-1] ^= 1
    with pytest.raises(StoreUnavailable):
        some.unseal(f"{key_id}:{base64.b64encode(raw).decode()}", HERE)


@pytest.mark.parametrize("sealed", ["", "a", "a:", "a:!", "b:AAAA", "a:AAAA", "a:" + "A" * 64])
def test_what_was_never_sealed_is_refused_without_being_quoted(sealed: str) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        keys("a").unseal(sealed, HERE)
    assert "AAAA" not in str(refused.value)


def test_sealing_twice_gives_two_texts() -> None:
    some = keys("a")
    assert some.seal("secret", HERE) != some.seal("secret", HERE)


def test_the_last_key_encrypts_and_every_key_decrypts() -> None:
    first = os.urandom(32)
    before = EncryptionKeys({"one": first})
    after = EncryptionKeys({"one": first, "two": os.urandom(32)})
    assert after.seal("x", HERE).startswith("two:")
    assert after.unseal(before.seal("x", HERE), HERE) == "x"
    with pytest.raises(StoreUnavailable):
        before.unseal(after.seal("x", HERE), HERE)


def test_an_api_key_is_hashed_with_each_key_the_newest_first() -> None:
    some = keys("one", "two")
    digests = some.digests("api key")
    assert [digest.key_id for digest in digests] == ["two", "one"]
    assert len({digest.value for digest in digests}) == 2
    assert digests == some.digests("api key")
    assert digests != some.digests("api kez")


def test_each_purpose_has_a_key_of_its_own_that_stays_the_same() -> None:
    some = EncryptionKeys({"one": bytes(32)})
    derived = [some.derived(purpose)["one"] for purpose in ("secrets", "api keys", "stand-in ids")]
    assert len(set(derived)) == 3
    # Stored rows depend on these: HKDF-SHA256, no salt, info "payout-gateway api keys".
    assert some.derived("api keys") == EncryptionKeys({"one": bytes(32)}).derived("api keys")
    assert bytes(32) not in derived


def test_keys_are_in_no_repr() -> None:
    key = b"k" * 32
    assert repr(EncryptionKeys({"one": key})) == "EncryptionKeys(one)"
