"""Encrypts stored secrets and hashes API keys, with the keys of the key file.

A key file has lines of ``<key id> <base64 of 32 random bytes>``. Every key decrypts, the last one
encrypts. Keys may be added; a key must not be removed while rows are encrypted or hashed with it.
Each purpose uses a separate key, derived by HKDF-SHA256, so that no key reveals another.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.storage.errors import StoreUnavailable

KEY_BYTES = 32
_NONCE_BYTES = 12


class EncryptionContext(NamedTuple):
    """The place where an encrypted value is stored.

    It is authenticated with the value (AES-GCM associated data), so that a value that was moved to
    another row or tenant cannot be decrypted.
    """

    table: str
    merchant: str
    environment: str
    column: str


class Digest(NamedTuple):
    """The HMAC-SHA256 of an API key in hexadecimal, and the id of the key used for it."""

    key_id: str
    value: str


class EncryptionKeys:
    """The keys of a key file, in file order."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.ids = tuple(self._keys)
        self.newest_key_id = self.ids[-1]
        """The id of the key that encrypts."""
        self.oldest = self.ids[0]
        """The id of the key that was used first, at any position in the file."""
        self._ciphers = {
            key_id: AESGCM(key) for key_id, key in self.derive_keys_by_id("secrets").items()
        }
        self._hashing = self.derive_keys_by_id("api keys")

    def __repr__(self) -> str:
        return f"EncryptionKeys({', '.join(self.ids)})"

    def derive_keys_by_id(self, purpose: str) -> dict[str, bytes]:
        """Derives 32 bytes for a purpose from each key, by key id, in file order."""
        info = b"payout-gateway " + purpose.encode()
        return {
            key_id: HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)
            for key_id, key in self._keys.items()
        }

    def derive_key_from_oldest(self, purpose: str) -> bytes:
        """Derives 32 bytes for a purpose from the oldest key.

        They do not change when a key is added: alias ids, counters and the fingerprints that
        recognize retries depend on them.
        """
        return self.derive_keys_by_id(purpose)[self.oldest]

    def encrypt(self, text: str, context: EncryptionContext, *, key_id: str | None = None) -> str:
        """Encrypts a text as ``<key id>:<base64 of nonce and ciphertext>``.

        The default of ``key_id`` is the newest key.
        """
        key_id = key_id or self.newest_key_id
        nonce_and_ciphertext = self._encrypt(text.encode(), context, key_id)
        return f"{key_id}:{binascii.b2a_base64(nonce_and_ciphertext, newline=False).decode()}"

    def decrypt(self, sealed: str, context: EncryptionContext) -> str:
        """Decrypts a text; raises StoreUnavailable if no key does so in this context."""
        key_id, _, packed = sealed.partition(":")
        try:
            nonce_and_ciphertext = base64.b64decode(packed, validate=True)
            return self._decrypt(nonce_and_ciphertext, context, key_id).decode()
        except (KeyError, ValueError, InvalidTag):
            raise _build_undecryptable_error(context, key_id) from None

    def encrypt_bytes(self, data: bytes, context: EncryptionContext) -> bytes:
        """Encrypts bytes as ``<key id>:``, nonce and ciphertext, with the newest key."""
        key_id = self.newest_key_id
        return b"%b:%b" % (key_id.encode(), self._encrypt(data, context, key_id))

    def decrypt_bytes(self, sealed: bytes, context: EncryptionContext) -> bytes:
        """Decrypts the result of ``encrypt_bytes``; raises as ``decrypt`` does."""
        name, _, nonce_and_ciphertext = sealed.partition(b":")
        key_id = name.decode("ascii", "replace")
        try:
            return self._decrypt(nonce_and_ciphertext, context, key_id)
        except (KeyError, ValueError, InvalidTag):
            raise _build_undecryptable_error(context, key_id) from None

    def _encrypt(self, data: bytes, context: EncryptionContext, key_id: str) -> bytes:
        # A random nonce is safe for 2**32 values of a key (NIST SP 800-38D, section 8.3).
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[key_id].encrypt(
            nonce, data, _build_associated_data(key_id, context)
        )

    def _decrypt(
        self, nonce_and_ciphertext: bytes, context: EncryptionContext, key_id: str
    ) -> bytes:
        nonce, body = nonce_and_ciphertext[:_NONCE_BYTES], nonce_and_ciphertext[_NONCE_BYTES:]
        return self._ciphers[key_id].decrypt(nonce, body, _build_associated_data(key_id, context))

    def digest_api_key(self, api_key: str) -> str:
        """Returns the digest of an API key with the newest key."""
        key = self._hashing[self.newest_key_id]
        return hmac.digest(key, api_key.encode(), "sha256").hex()

    def list_api_key_digests(self, api_key: str) -> tuple[Digest, ...]:
        """Returns the digests of an API key with each key, newest first."""
        return tuple(
            Digest(key_id, hmac.digest(key, api_key.encode(), hashlib.sha256).hex())
            for key_id, key in reversed(self._hashing.items())
        )


def _build_undecryptable_error(context: EncryptionContext, key_id: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{context.column} of {context.merchant} {context.environment} in table {context.table} "
        f"cannot be decrypted with key {key_id[:32]!r}",
        means="the key file had a different key or none with that id when it was read, or the row "
        "was altered",
        do="if a key was added to the file since, restart every process that uses the database; "
        "otherwise restore the key file that belongs to the database, or the row",
    )


def _build_associated_data(key_id: str, context: EncryptionContext) -> bytes:
    # A JSON array is unambiguous: joined parts could be split at other positions.
    start = _encode_names(key_id, context.table, context.merchant, context.environment)
    return f"[{start}, {encode_basestring_ascii(context.column)}]".encode()


@lru_cache(maxsize=1024)
def _encode_names(*names: str) -> str:
    return ", ".join(map(encode_basestring_ascii, names))


def build_key_line() -> str:
    """Builds a line for the key file, with a random id and key."""
    key = base64.b64encode(os.urandom(KEY_BYTES)).decode()
    return f"{secrets.token_hex(4)} {key}\n"
