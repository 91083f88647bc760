"""Verification of the signature; requests over sockets try its headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.signed_api.credentials import SignatureHeader, SignatureVerifier

SIGNATURES = Path(__file__).parents[2] / "signatures"
VECTORS = sorted(SIGNATURES.glob("*.json"))
SIGNATURE = "0123456789abcdef" * 4


def build_signature_header(timestamp: object = 1, signature: str = SIGNATURE) -> SignatureHeader:
    return SignatureHeader("AK", signature, str(timestamp))


def test_repr_hides_key_and_signature() -> None:
    assert "AK" not in repr(build_signature_header())
    assert SIGNATURE not in repr(build_signature_header())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda path: path.stem)
@pytest.mark.parametrize("split_offset", [0, 1, 7])
def test_openssl_signature_is_verified_for_any_body_chunks(vector: Path, split_offset: int) -> None:
    test_vector = json.loads(vector.read_text("utf-8"))
    body = test_vector["body"].encode()
    credentials = build_signature_header(test_vector["timestamp"], test_vector["signature"])
    verifier = SignatureVerifier(
        ["other", test_vector["secret_key"]],
        credentials,
        test_vector["method"],
        test_vector["target"],
    )
    for part in (body[:split_offset], b"", body[split_offset:]):
        verifier.update(part)
    assert verifier.list_secret_matches() == [False, True]


visible_characters = st.characters(min_codepoint=0x21, max_codepoint=0x7E)


@given(
    st.text(visible_characters),
    st.binary(),
    st.binary(min_size=1),
    st.sampled_from(["GET", "POST"]),
)
def test_changed_body_fails_verification(
    query: str, body: bytes, extra_bytes: bytes, method: str
) -> None:
    from tests.signed_requests import sign_by_hand

    target = f"/v1/x?{query}"
    credentials = build_signature_header(1, sign_by_hand("SK", 1, method, target, body))
    for received_body, is_match in (
        (body, True),
        (body + extra_bytes, False),
        (extra_bytes + body, extra_bytes + body == body),
    ):
        verifier = SignatureVerifier(["SK"], credentials, method, target)
        verifier.update(received_body)
        assert verifier.list_secret_matches() == [is_match]
