"""The two headers of a signed request, and verification of the signature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.settings import CurrentWords
from gateway.signed_api.credentials import (
    MalformedSignature,
    SignatureHeader,
    SignatureVerifier,
    has_scheme,
    parse_signature_header,
)

SIGNATURES = Path(__file__).parents[2] / "signatures"
VECTORS = sorted(SIGNATURES.glob("*.json"))
WORDS = CurrentWords()
MADE = "0123456789abcdef" * 4


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def signed(stamp: object = 1, made: str = MADE) -> SignatureHeader:
    return SignatureHeader("AK", made, str(stamp))


def test_headers_of_the_document_are_read() -> None:
    given = headers(("authorization", f"svcsign AK:{MADE}"), ("x-svc-timestamp", "017"))
    assert parse_signature_header(given, WORDS) == SignatureHeader("AK", MADE, "017")


def test_neither_key_nor_signature_is_shown() -> None:
    assert "AK" not in repr(signed())
    assert MADE not in repr(signed())


def test_what_is_wrong_is_told_without_quoting_it() -> None:
    given = headers(("Authorization", "svcsign canary:canary"), ("X-SVC-Timestamp", "canary"))
    with pytest.raises(MalformedSignature) as malformed:
        parse_signature_header(given, WORDS)
    assert "canary" not in str(malformed.value)


@pytest.mark.parametrize("value", ["svcsign", "svcsign x", " SVCSIGN\tx", "svcsign  "])
def test_the_scheme_alone_says_that_a_request_is_signed(value: str) -> None:
    assert has_scheme(headers(("Authorization", value)), "SvcSign")


@pytest.mark.parametrize("value", ["", "x svcsign", "svcsigned x", "svcsign,x", "svcsign:x"])
def test_another_word_is_another_scheme(value: str) -> None:
    assert not has_scheme(headers(("Authorization", value)), "svcsign")


@pytest.mark.parametrize(
    ("now", "stamp", "is_fresh"),
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
def test_age_is_counted_in_whole_seconds(now: float, stamp: object, *, is_fresh: bool) -> None:
    assert signed(stamp).is_fresh(now) is is_fresh


@pytest.mark.parametrize("vector", VECTORS, ids=lambda path: path.stem)
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_what_openssl_signed_is_proven_however_the_body_comes(vector: Path, cut: int) -> None:
    made = json.loads(vector.read_text("utf-8"))
    body = made["body"].encode()
    credentials = signed(made["timestamp"], made["signature"])
    proof = SignatureVerifier(
        ["other", made["secret_key"]], credentials, made["method"], made["target"]
    )
    for part in (body[:cut], b"", body[cut:]):
        proof.update(part)
    assert proof.match_secrets() == [False, True]


def test_a_read_over_the_path_proves_a_target_with_a_query_and_the_other_way_round() -> None:
    path = json.loads((SIGNATURES / "read-over-path.json").read_text("utf-8"))
    whole = json.loads((SIGNATURES / "read-over-path-and-query.json").read_text("utf-8"))
    for made in (path, whole):
        credentials = signed(made["timestamp"], made["signature"])
        proof = SignatureVerifier([made["secret_key"]], credentials, "GET", whole["target"])
        assert proof.match_secrets() == [True]


def test_of_no_secret_nothing_is_found() -> None:
    proof = SignatureVerifier([], signed(), "GET", "/v1/x")
    proof.update(b"body")
    assert proof.match_secrets() == []


VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)


@given(st.text(VISIBLE), st.binary(), st.binary(min_size=1), st.sampled_from(["GET", "POST"]))
def test_a_body_with_more_or_less_in_it_is_not_proven(
    query: str, body: bytes, more: bytes, method: str
) -> None:
    from tests.signed import by_hand

    target = f"/v1/x?{query}"
    credentials = signed(1, by_hand("SK", 1, method, target, body))
    for sent, is_it in ((body, True), (body + more, False), (more + body, more + body == body)):
        proof = SignatureVerifier(["SK"], credentials, method, target)
        proof.update(sent)
        assert proof.match_secrets() == [is_it]
