"""The two headers of a signed request, and verification of the signature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.sections import CurrentWords
from gateway.signed_api.credentials import (
    SignatureHeader,
    SignatureVerifier,
    has_authorization_scheme,
    parse_signature_header,
)
from gateway.signed_api.replies import Refusal

SIGNATURES = Path(__file__).parents[2] / "signatures"
VECTORS = sorted(SIGNATURES.glob("*.json"))
VOCABULARY = CurrentWords()
SIGNATURE = "0123456789abcdef" * 4


def build_headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def build_signature_header(timestamp: object = 1, signature: str = SIGNATURE) -> SignatureHeader:
    return SignatureHeader("AK", signature, str(timestamp))


def test_documented_headers_are_parsed() -> None:
    request_headers = build_headers(
        ("authorization", f"svcsign AK:{SIGNATURE}"), ("x-svc-timestamp", "017")
    )
    assert parse_signature_header(request_headers, VOCABULARY) == SignatureHeader(
        "AK", SIGNATURE, "017"
    )


def test_repr_hides_key_and_signature() -> None:
    assert "AK" not in repr(build_signature_header())
    assert SIGNATURE not in repr(build_signature_header())


def test_malformed_header_is_described_without_quoting_it() -> None:
    request_headers = build_headers(
        ("Authorization", "svcsign canary:canary"), ("X-SVC-Timestamp", "canary")
    )
    with pytest.raises(Refusal) as error:
        parse_signature_header(request_headers, VOCABULARY)
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("value", ["svcsign", "svcsign x", " SVCSIGN\tx", "svcsign  "])
def test_scheme_alone_marks_request_as_signed(value: str) -> None:
    assert has_authorization_scheme(build_headers(("Authorization", value)), "SvcSign")


@pytest.mark.parametrize("value", ["", "x svcsign", "svcsigned x", "svcsign,x", "svcsign:x"])
def test_other_word_is_another_scheme(value: str) -> None:
    assert not has_authorization_scheme(build_headers(("Authorization", value)), "svcsign")


@pytest.mark.parametrize(
    ("now", "timestamp", "is_fresh"),
    [
        (1000.0, 970, True),
        (1000.999, 970, True),
        (1001.0, 970, False),
        (1000.0, 1030, True),
        (1000.999, 1030, True),
        (999.999, 1030, False),
        (1000.0, "0001000", True),
    ],
)
def test_age_is_counted_in_whole_seconds(now: float, timestamp: object, *, is_fresh: bool) -> None:
    assert build_signature_header(timestamp).is_fresh(now) is is_fresh


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


def test_signature_over_path_or_path_and_query_is_verified() -> None:
    path = json.loads((SIGNATURES / "read-over-path.json").read_text("utf-8"))
    full_target_vector = json.loads(
        (SIGNATURES / "read-over-path-and-query.json").read_text("utf-8")
    )
    for test_vector in (path, full_target_vector):
        credentials = build_signature_header(test_vector["timestamp"], test_vector["signature"])
        verifier = SignatureVerifier(
            [test_vector["secret_key"]], credentials, "GET", full_target_vector["target"]
        )
        assert verifier.list_secret_matches() == [True]


def test_without_secrets_no_signature_matches() -> None:
    verifier = SignatureVerifier([], build_signature_header(), "GET", "/v1/x")
    verifier.update(b"body")
    assert verifier.list_secret_matches() == []


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
