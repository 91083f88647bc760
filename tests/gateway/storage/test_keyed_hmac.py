import hmac
import os

import pytest

from gateway.storage.keyed_hmac import KeyedHmac


@pytest.mark.parametrize("size", [0, 1, 32, 63, 64, 65, 200])
def test_digest_equals_library_digest_on_repeated_use(size: int) -> None:
    key = os.urandom(size)
    keyed_hmac = KeyedHmac(key)
    for parts in ([], [b""], [b"text"], [b"te", b"", b"xt"], [os.urandom(5000), b"\n"]):
        message = b"".join(parts)
        assert keyed_hmac.hexdigest_parts(parts) == hmac.digest(key, message, "sha256").hex()
        assert keyed_hmac.hexdigest(message) == keyed_hmac.hexdigest_parts(parts)
