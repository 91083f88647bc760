"""Input files of a comparison: detection by content, and refusal with line and reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.compare.inputs import load_inputs, parse_input
from gateway.compare.requests import InputError
from gateway.compare.rules import Rules, parse_rules
from gateway.compare.steps import Input
from tests.gateway.compare.fake_services import EXAMPLES, build_har


def parse_text(text: str) -> Input:
    return parse_input(text, "input", Rules())


def parse_refused_text(text: str) -> str:
    with pytest.raises(InputError) as raised_error:
        parse_text(text)
    return str(raised_error.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("GET /v1/recipients", "list of reads"),
        ("\n# a comment\n\n  get /v1/recipients?page=1  \n", "list of reads"),
        ("GET /v1/batches  # a comment\nGET /v1/recipients # 2", "list of reads"),
        ('[[steps]]\nrequest = "GET /v1/batches"', "scenario"),
        ('# GET /v1/no\ntitle = "x"\nsteps = [{ request = "GET /v1/batches" }]', "scenario"),
        (build_har(("GET", "https://old.example/v1/batches")), "recorded traffic"),
        (f"\ufeff {build_har()}".removeprefix("\ufeff"), "recorded traffic"),
    ],
)
def test_input_kind_is_detected_by_content(text: str, kind: str) -> None:
    assert parse_text(text).kind == kind


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "input: the file is empty"),
        ("# only this\n", "input: the file is empty"),
        ("hello\n", "input: neither a scenario"),
        ("{", "input: starts with { but is not valid JSON"),
        ('{"a":1}', "input: not HAR 1.2: log.entries: missing"),
        ('{"log":{"entries":[{}]}}', "input: not HAR 1.2: log.entries #1.request: missing"),
        ('{"log":{"entries":[null]}}', "input: not HAR 1.2: log.entries #1: must be a section"),
        ("GET /v1/a\nPOST /v1/recipients", "input, line 2: POST is a write"),
        ("GET /v1/a\nGET /v2/recipients", "input, line 2: not a request"),
        ("GET /v1/a\nGET /v1evil", "input, line 2: not a request"),
        ("GET /v1/recipients?search=Ada Lovelace", "input, line 1: not a request"),
        ("GET /v1/recipients#x", "input, line 1: a path cannot contain #"),
        ("GET /v1/é", "input, line 1: not a request"),
        ("GET https://old.example/v1/a", "input: neither"),
        ("steps = 1 =", "input: not TOML"),
        ("[server]\nport = 8080", "input: server: unknown key; steps: missing"),
        ("steps = []", "input: steps: must not be empty"),
        (
            "steps = [{ request = 'GET /v1/a', bdy = {} }]",
            "input: steps #1.bdy: unknown key; did you mean body?",
        ),
        ("steps = [{ request = 'GET /v1/${x}' }]", "input: steps #1: no earlier step captures x"),
        ("steps = [{ request = 5 }]", "input: steps #1.request: must be text, in quotes"),
        ("steps = [{ request = 'GET /v1/a', key = 'x' }]", "input: steps #1.key: must be 'own'"),
        ("steps = [{ request = 'PUSH /v1/a' }]", "input: steps #1.request: not a request"),
        (
            "steps = [{ request = 'POST /v1/a', body = 2026-03-01 }]",
            "input: steps #1.body: write dates as text",
        ),
        (
            "steps = [{ request = 'POST /v1/a', body = { a = nan } }]",
            "input: steps #1.body: write dates as text; nan and inf are not JSON numbers",
        ),
        (
            "steps = [{ request = 'POST /v1/a', until = { path = 'a', is = 1 } }]",
            "input: steps #1: until is only for reads",
        ),
        (
            "steps = [{ request = 'GET /v1/a', capture = { x = 'a..b' } }]",
            "input: steps #1.capture.x: not a path",
        ),
        (
            "rules = { ignore = [{ path = 'a' }] }\nsteps = [{ request = 'GET /v1/a' }]",
            "input: ignore #1.reason: every rule needs a reason",
        ),
    ],
)
def test_unusable_input_is_refused_with_position_and_reason(text: str, expected_text: str) -> None:
    assert parse_refused_text(text).startswith(expected_text)


def test_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_inputs([tmp_path / "nowhere"], Rules())
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        load_inputs([tmp_path / "latin"], Rules())


# Recorded traffic

RECORDED_KEY = "a-key-that-was-recorded"


def test_only_legacy_requests_of_recorded_traffic_are_read() -> None:
    signed_headers = {"Authorization": "svcsign A:b"}
    parsed_input = parse_text(
        build_har(
            ("GET", "https://old.example/v1/recipients?page=2"),
            ("GET", "https://old.example/style.css"),
            ("GET", "https://old.example/api/v1/batches"),
            ("OPTIONS", "https://old.example/v1/recipients"),
            ("GET", "https://new.example/v1/balance", None, None, signed_headers),
            ("CONNECT", "https://old.example/v1/recipients"),
        )
    )
    assert [step.target.parts for step in parsed_input.steps] == [
        ("/v1/recipients?page=2",),
        ("/v1/batches",),
    ]
    assert [step.number for step in parsed_input.steps] == [1, 3]
    assert sum(parsed_input.omitted_counts.values()) == 4


def test_secrets_of_recorded_traffic_are_not_read() -> None:
    headers = {"X-API-Key": RECORDED_KEY, "Cookie": RECORDED_KEY, "X-Own": RECORDED_KEY}
    url = f"https://me:{RECORDED_KEY}@old.example/v1/recipients?page=1&api_key={RECORDED_KEY}&token={RECORDED_KEY}"
    parsed_input = parse_text(build_har(("GET", url, None, {"said": RECORDED_KEY}, headers)))
    assert RECORDED_KEY not in repr(parsed_input)
    assert parsed_input.steps[0].target.parts == ("/v1/recipients?page=1",)


def test_address_recorded_decoded_is_sent_as_received() -> None:
    (step,) = parse_text(
        build_har(("GET", "https://old.example/v1/recipients?search=Zoë A&page=%31"))
    ).steps
    assert step.target.parts == ("/v1/recipients?search=Zo%C3%AB%20A&page=%31",)


def test_recorded_body_is_sent_byte_for_byte() -> None:
    text = '{"amount": 10.50,\n "amount":1E2, "memo":"${x} $${y} \\u00e9"}'
    traffic = json.loads(build_har(("POST", "https://old.example/v1/batches", {})))
    traffic["log"]["entries"][0]["request"]["postData"]["text"] = text
    (step,) = parse_text(json.dumps(traffic)).steps
    assert step.body is not None
    assert step.body.fill(lambda ref: ref.name) == text


@pytest.mark.parametrize(
    ("post_data", "expected_body"),
    [
        ({"encoding": "base64", "text": "eyJhIjoxfQ=="}, '{"a":1}'),
        ({"encoding": "base64", "text": ""}, None),
        ({"text": ""}, None),
    ],
)
def test_body_recorded_with_encoding_is_sent_as_received(
    post_data: dict[str, str], expected_body: str | None
) -> None:
    traffic = json.loads(build_har(("POST", "https://old.example/v1/batches", {})))
    traffic["log"]["entries"][0]["request"]["postData"] = {"mimeType": "", **post_data}
    (step,) = parse_text(json.dumps(traffic)).steps
    assert (None if step.body is None else step.body.fill(lambda ref: ref.name)) == expected_body


@pytest.mark.parametrize(
    "request_",
    [
        {"postData": {"mimeType": "x", "encoding": "base64", "text": "/w=="}},
        {"postData": {"mimeType": "x", "encoding": "base64", "text": "{}"}},
        {"postData": {"mimeType": "x", "encoding": "base64"}},
        {"postData": {"mimeType": "x", "params": []}},
        {"bodySize": 7},
    ],
)
def test_request_without_recorded_body_is_not_sent(
    request_: dict[str, Any],
) -> None:
    traffic = json.loads(build_har(("POST", "https://old.example/v1/batches")))
    traffic["log"]["entries"][0]["request"] |= request_
    assert parse_text(json.dumps(traffic)).omitted_counts == {
        "its body was not recorded as text": 1
    }


def test_null_members_of_recorded_traffic_count_as_absent() -> None:
    request = {"method": "GET", "url": "https://old.example/v1/batches", "postData": None}
    entry = {"time": None, "request": {**request, "bodySize": None}, "response": None}
    (step,) = parse_text(json.dumps({"log": {"entries": [entry]}})).steps
    assert (step.operation.name, step.body) == ("list_batches", None)


def test_id_from_recorded_answer_is_captured() -> None:
    created_batch = {"batch": {"id": "B-1", "payments": [{"id": "P-1"}, {"id": "P-2"}]}}
    parsed_input = parse_text(
        build_har(
            ("POST", "https://old.example/v1/batches", {"recipient": {"id": "R-1"}}, created_batch),
            ("GET", "https://old.example/v1/batches/B-1/payments/P-2"),
            ("GET", "https://old.example/v1/recipients/R-1", None, {"recipient": {"id": "R-1"}}),
            ("GET", "https://old.example/v1/recipients/R-1"),
        )
    )
    captured_paths = {
        name: capture.path for name, capture in parsed_input.steps[0].captures.items()
    }
    assert captured_paths == {"B-1": ("batch", "id"), "P-2": ("batch", "payments", 1, "id")}
    assert parsed_input.steps[1].placeholder_names == {"B-1", "P-2"}
    assert parsed_input.steps[3].placeholder_names == set(), "the client itself named it R-1"


# Rules


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("[[ignore]]\npath = 'a'", "rules: ignore #1.reason: every rule needs a reason"),
        (
            "[[ignore]]\npath = 'a'\nreason = ' '",
            "rules: ignore #1.reason: every rule needs a reason",
        ),
        ("[[ignore]]\nreason = 'x'", "rules: ignore #1.path: missing"),
        ("[[time]]\npath = 'a'\nreason = 'x'", "rules: time #1.seconds: missing"),
        (
            "[[time]]\npath = 'a'\nreason = 'x'\nseconds = -1",
            "rules: time #1.seconds: must be 0 or more",
        ),
        (
            "[[number]]\npath='a'\nreason='x'\ntolerance='x'",
            "rules: number #1.tolerance: must be a number",
        ),
        ("[[ignored]]\npath = 'a'", "rules: ignored: unknown key; did you mean ignore?"),
        (
            "[[ignore]]\npath = 'a[0].b'\nreason = 'x'",
            "rules: ignore #1.path: write [] for list items",
        ),
        ("x", "rules: not TOML"),
    ],
)
def test_incomplete_rule_is_refused(text: str, expected_text: str) -> None:
    with pytest.raises(InputError) as raised_error:
        parse_rules(text, "rules")
    assert str(raised_error.value).startswith(expected_text)


def test_refused_rule_is_reported_without_its_text() -> None:
    with pytest.raises(InputError) as raised_error:
        parse_rules("[[ignore]]\npath = 5\nreason = 'ada@example.com'", "rules")
    assert "ada" not in str(raised_error.value)


def test_every_built_in_rule_has_a_reason() -> None:
    assert all(rule.reason for rule in Rules().rules)


def test_headers_of_file_replace_default_list() -> None:
    rules = Rules().combine(parse_rules('headers = ["X-Request-*"]', "rules"))
    assert rules.is_compared_header("x-request-id")
    assert not rules.is_compared_header("content-type")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.t*")), ids=lambda path: path.name)
def test_shipped_examples_are_valid(path: Path) -> None:
    if path.name == "rules.toml":
        assert parse_rules(path.read_text(), path.name).rules
    else:
        (parsed_input,) = load_inputs([path], Rules())
        assert parsed_input.steps
        assert all(step.operation.name for step in parsed_input.steps)
