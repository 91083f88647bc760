"""The key file, and what is done with its keys: sealing secrets, hashing API keys.

A key file is lines of ``<key id> <base64 of 32 random bytes>``. Every line decrypts, the last one
encrypts; a line may be added, and none may be taken away while rows are sealed or hashed with it.
Each use has a key of its own, derived by HKDF-SHA256, so that none tells anything of another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.storage.errors import StoreUnavailable
from gateway.storage.keyed_hmac import KeyedHmac

KEY_BYTES = 32
_NONCE_BYTES = 12


class Place(NamedTuple):
    """Where a sealed text stands; it opens nowhere else."""

    table: str
    merchant: str
    environment: str
    column: str


class Digest(NamedTuple):
    """An API key's HMAC-SHA256 in hexadecimal, and the id of the key it was made with."""

    key_id: str
    value: str


class EncryptionKeys:
    """The keys of a key file, in its order."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.ids = tuple(self._keys)
        self.oldest = self.ids[0]
        """The id of the key that was there first, wherever it stands in the file."""
        self._ciphers = {key_id: AESGCM(key) for key_id, key in self.derived("secrets").items()}
        self._hashing = self.derived("api keys")
        self._newest_hashing = KeyedHmac(self._hashing[self.newest])

    def __repr__(self) -> str:
        return f"EncryptionKeys({', '.join(self.ids)})"

    @property
    def newest(self) -> str:
        """The id of the key that encrypts."""
        return self.ids[-1]

    def derived(self, purpose: str) -> dict[str, bytes]:
        """32 bytes for a purpose from each key, by key id, in the file's order."""
        info = b"payout-gateway " + purpose.encode()
        return {
            key_id: HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)
            for key_id, key in self._keys.items()
        }

    def lasting(self, purpose: str) -> bytes:
        """32 bytes for a purpose, of the oldest key: one that is added later gives no object another
        stand-in, begins no tally anew, and lets no retry go unknown.
        """
        return self.derived(purpose)[self.oldest]

    def seal(self, text: str, place: Place, *, key_id: str | None = None) -> str:
        """``<key id>:<base64 of nonce and ciphertext>``, by the newest key unless told."""
        key_id = key_id or self.newest
        return (
            f"{key_id}:{base64.b64encode(self._encrypted(text.encode(), place, key_id)).decode()}"
        )

    def unseal(self, sealed: str, place: Place) -> str:
        """The text; StoreUnavailable where no key opens it in this place."""
        key_id, _, packed = sealed.partition(":")
        try:
            both = base64.b64decode(packed, validate=True)
            return self._decrypted(both, place, key_id).decode()
        except (KeyError, ValueError, InvalidTag):
            raise _closed(place, key_id) from None

    def seal_bytes(self, data: bytes, place: Place) -> bytes:
        """``<key id>:``, nonce and ciphertext, by the newest key."""
        key_id = self.newest
        return b"%b:%b" % (key_id.encode(), self._encrypted(data, place, key_id))

    def unseal_bytes(self, sealed: bytes, place: Place) -> bytes:
        """As ``unseal``, of what ``seal_bytes`` has sealed."""
        name, _, both = sealed.partition(b":")
        key_id = name.decode("ascii", "replace")
        try:
            return self._decrypted(both, place, key_id)
        except (KeyError, ValueError, InvalidTag):
            raise _closed(place, key_id) from None

    def _encrypted(self, data: bytes, place: Place, key_id: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[key_id].encrypt(nonce, data, _identity(key_id, place))

    def _decrypted(self, both: bytes, place: Place, key_id: str) -> bytes:
        nonce, body = both[:_NONCE_BYTES], both[_NONCE_BYTES:]
        return self._ciphers[key_id].decrypt(nonce, body, _identity(key_id, place))

    def digest(self, api_key: str) -> str:
        """An API key's digest by the newest key."""
        return self._newest_hashing.hexdigest(api_key.encode())

    def digests(self, api_key: str) -> tuple[Digest, ...]:
        """An API key's digest by each key, the newest key's first."""
        return tuple(
            Digest(key_id, hmac.digest(key, api_key.encode(), hashlib.sha256).hex())
            for key_id, key in reversed(self._hashing.items())
        )


def _closed(place: Place, key_id: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{place.column} of {place.merchant} {place.environment} in table {place.table} "
        f"cannot be decrypted with key {key_id[:32]!r}",
        means="the key file had another key or none of that id when it was read, or the row was altered",
        do="restart what runs on this state where a key was added to the file since; else restore the "
        "key file that the state was used with, or the row",
    )


def _identity(key_id: str, place: Place) -> bytes:
    # A JSON array, because parts that are merely joined can be cut apart elsewhere.
    return f"[{', '.join(map(encode_basestring_ascii, (key_id, *place)))}]".encode()


def new_key_line() -> str:
    """A line for a key file, with a new id and a new key."""
    key = base64.b64encode(os.urandom(KEY_BYTES)).decode()
    return f"{secrets.token_hex(4)} {key}\n"
