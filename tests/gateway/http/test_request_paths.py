"""Request targets: which are forwarded unchanged, and how they are logged."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.request_paths import PathTemplates, is_forwardable, parse_path_parts
from mappings.effects import Vocabulary

visible_text = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)
PATH_TEMPLATES = PathTemplates(Vocabulary())


def encode_repeatedly(text: str) -> list[str]:
    """List the percent-encodings of a text, encoded once, twice and three times."""
    encodings = [text]
    for _ in range(3):
        encodings.append(
            "".join(f"%{ord(letter):02x}" for letter in text)
            if len(encodings) == 1
            else quote(encodings[-1])
        )
    return [*encodings[1:], encodings[1].upper()]


@pytest.mark.parametrize(
    "encoded",
    [
        encoding
        for text in ("/", "\\", ".", "\0", "\n", "\r", "\x7f", "..")
        for encoding in encode_repeatedly(text)
    ],
)
def test_encoded_slash_dot_or_control_character_is_not_forwarded(encoded: str) -> None:
    for target in (f"/v1/a{encoded}b", f"/v1/{encoded}", f"/v1/recipients/{encoded}/profile"):
        assert not is_forwardable(target)
    assert is_forwardable(f"/v1/a?x={encoded}")


@pytest.mark.parametrize(
    "part", [".", "..", "..;x", ".;", "..%3Bx", "%20..", "..%20", "%20.%20", "..%253Bx", ";/.."]
)
def test_parent_segment_is_not_forwarded(part: str) -> None:
    assert not is_forwardable(f"/v1/a/{part}/b")
    assert not is_forwardable(f"/v1/{part}")


def test_repeatedly_encoded_path_is_rejected_cheaply() -> None:
    assert is_forwardable("/v1/%2525-")
    assert not is_forwardable("/v1/%25252525-")
    assert not is_forwardable("/v1/%" + "25" * 4000)


@given(visible_text, visible_text)
def test_forwarded_path_cannot_be_decoded_into_another(path: str, query: str) -> None:
    from urllib.parse import unquote

    target = f"/v1/{path}?{query}"
    if not is_forwardable(target):
        return
    raw_path = target.partition("?")[0]
    decoded_path = raw_path
    for _ in range(40):
        decoded_path = unquote(decoded_path, "latin-1")
        assert decoded_path.count("/") == raw_path.count("/")
        assert not {".", ".."} & {part.strip() for part in decoded_path.split("/")}
        assert all(letter >= " " and letter != "\\" for letter in decoded_path)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("/v1/", []),
        ("/v1/batches/B-1", ["batches", "B-1"]),
        ("/v1//batches///B-1/?x=/y", ["batches", "B-1"]),
        ("/v1/batches/%42-1/start%2dprocessing", ["batches", "B-1", "start-processing"]),
        ("/v1/batches/%2542-1", ["batches", "B-1"]),
        ("/v1/batches;a=b/B-1;c/start-processing;", ["batches", "B-1", "start-processing"]),
        ("/v1/batches/B-1%20/x", ["batches", "B-1", "x"]),
    ],
)
def test_path_is_interpreted_like_the_most_lenient_service(target: str, names: list[str]) -> None:
    assert is_forwardable(target)
    assert parse_path_parts(target) == names


@pytest.mark.parametrize(
    ("target", "logged_path"),
    [
        ("/v1/recipients/R-1/accounts/A-1?email=x", "/v1/recipients/…/accounts/…"),
        ("/v1/batch/B-1/summary", "/v1/batch/…/summary"),
        ("/v1/batches/B-1/start-processing", "/v1/batches/…/start-processing"),
        ("/v1/profile/submerchant", "/v1/profile/submerchant"),
        ("/v1/direct-debit/bank-account/", "/v1/direct-debit/bank-account/"),
        ("/v1/subscriptions/7", "/v1/subscriptions/…"),
        ("/v1/ada@example.com/907154263", "/v1/…/…"),
        ("/v1/a/b/c/d/e/f/g/h/i/j", "/v1/…/…/…/…/…/…"),
        ("http://x.example/v1/recipients", "…//…/v1/recipients"),
    ],
)
def test_log_contains_only_words_of_the_interface(target: str, logged_path: str) -> None:
    assert PATH_TEMPLATES.redact(target) == logged_path


def test_configured_paths_are_logged() -> None:
    vocabulary = Vocabulary(current_balance_path="/v1/funds", current_summary_path="/v1/b/{id}/sum")
    path_templates = PathTemplates(vocabulary)
    assert path_templates.redact("/v1/funds") == "/v1/funds"
    assert path_templates.redact("/v1/b/B-1/sum") == "/v1/b/…/sum"
