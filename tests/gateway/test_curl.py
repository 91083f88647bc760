"""Parsing of pasted curl commands."""

from __future__ import annotations

import pytest

from gateway.docgen.curl import InvalidRequestText, parse_curl, separate_own_and_curl_arguments

LEGACY_URL = "https://legacy.example/v1/recipients"
KEY_HEADER = "X-API-Key: never-shown"
LIST_REQUEST = ("GET", "/v1/recipients", b"")
CREATE_REQUEST = ("POST", "/v1/recipients", b'{"a":1}')
FILES = {"body.json": b'{"a":1}'}
read_file = FILES.__getitem__


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-X", "POST", "/v1/recipients", "-d", '{"a":1}'], CREATE_REQUEST),
        (
            [
                "curl",
                "--request",
                "POST",
                "--url",
                LEGACY_URL,
                "--header",
                KEY_HEADER,
                "--data",
                '{"a":1}',
            ],
            CREATE_REQUEST,
        ),
        (
            ["curl", "--location", LEGACY_URL, "-H", KEY_HEADER, "--data-raw", '{"a":1}'],
            CREATE_REQUEST,
        ),
        (["curl", LEGACY_URL, '-d{"a":1}'], CREATE_REQUEST),
        (["curl", LEGACY_URL, "--json", '{"a":1}'], CREATE_REQUEST),
        (["curl", LEGACY_URL, "-d", "@body.json"], CREATE_REQUEST),
        (["curl", LEGACY_URL, "--data-raw", "@x"], ("POST", "/v1/recipients", b"@x")),
        (["curl", "-sXPOST", LEGACY_URL, "-d", '{"a":1}'], CREATE_REQUEST),
        (
            [f"curl -X POST '{LEGACY_URL}' \\\n  -H '{KEY_HEADER}' \\\n  -d '{{\"a\":1}}'"],
            CREATE_REQUEST,
        ),
        (["POST", "/v1/recipients", "-d", '{"a":1}'], CREATE_REQUEST),
        (["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", LEGACY_URL], LIST_REQUEST),
        (["curl", "--connect-timeout", "5", "--retry", "3", LEGACY_URL], LIST_REQUEST),
        (["curl", "--cacert", "/etc/ca.pem", "--user-agent", "x/1", LEGACY_URL], LIST_REQUEST),
        (["curl", "--an-option-of-later", "/some/value", LEGACY_URL], LIST_REQUEST),
        (["curl", "-e", "https://other.example/v1/batches", LEGACY_URL], LIST_REQUEST),
        (["curl", "legacy.example:8080/v1/recipients"], LIST_REQUEST),
        (["curl", "https://name:word@legacy.example/base/v1/recipients#top"], LIST_REQUEST),
        (
            ["curl", "-G", "-d", "page=2", "--data-urlencode", "search=a b", LEGACY_URL],
            ("GET", "/v1/recipients?page=2&search=a%20b", b""),
        ),
        (
            ["curl", f"{LEGACY_URL}/?&search=&page=1"],
            ("GET", "/v1/recipients/?&search=&page=1", b""),
        ),
        (["curl", "-X", "delete", f"{LEGACY_URL}/R-1"], ("DELETE", "/v1/recipients/R-1", b"")),
        (["curl", "https://legacy.example/v2/x"], ("GET", "/v2/x", b"")),
        # Arguments in Latin-1, as Python decodes them.
        (["curl", LEGACY_URL, "-d", '{"a":"\udce9"}'], ("POST", "/v1/recipients", b'{"a":"\xe9"}')),
        (["curl", LEGACY_URL, "--data-raw", "\udce9"], ("POST", "/v1/recipients", b"\xe9")),
        (
            ["curl", "-G", "--data-urlencode", "search=\udce9", LEGACY_URL],
            ("GET", "/v1/recipients?search=%E9", b""),
        ),
    ],
    ids=str,
)
def test_curl_command_is_parsed(arguments: list[str], expected: tuple[str, str, bytes]) -> None:
    assert parse_curl(arguments, read_file) == expected


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["curl", "-H", KEY_HEADER], "no address was given"),
        ([f"curl -H '{KEY_HEADER}"], "unclosed quote"),
        ([f"wget --header '{KEY_HEADER}'"], "no address was given"),
        (["curl", LEGACY_URL, "-d"], "-d needs a value"),
        (["POST", "/v1/batches", '{"memo": "never-shown"}'], "a body is given without -d"),
        (["curl", LEGACY_URL, "-F", "type=never-shown"], r"a form \(-F\).* give the body with -d"),
        (["curl", LEGACY_URL, "--form-string=a=never-shown"], "a form"),
        (["curl", "-sTnever-shown", LEGACY_URL], r"an uploaded file \(-T\)"),
        (["curl", "--upload-file", "never-shown", LEGACY_URL], "an uploaded file"),
    ],
    ids=str,
)
def test_invalid_command_is_reported_without_quoting_it(
    arguments: list[str], expected_text: str
) -> None:
    with pytest.raises(InvalidRequestText, match=expected_text) as error:
        parse_curl(arguments, read_file)
    assert "never-shown" not in str(error.value)


def test_own_options_are_distinguished_from_curl_options() -> None:
    assert separate_own_and_curl_arguments(["--json", "curl", LEGACY_URL]) == (
        ["--json"],
        ["curl", LEGACY_URL],
    )
    assert separate_own_and_curl_arguments([LEGACY_URL, "--json"]) == (
        ["--json"],
        [LEGACY_URL],
    )
    arguments = ["--json", '{"a":1}', LEGACY_URL, "--json", "--config", "x.toml"]
    curl_arguments = ["--json", '{"a":1}', LEGACY_URL]
    assert separate_own_and_curl_arguments(arguments) == (
        ["--json", "--config", "x.toml"],
        curl_arguments,
    )
    assert separate_own_and_curl_arguments(["--config=x.toml", "--", "--json"]) == (
        ["--config=x.toml"],
        ["--json"],
    )
    assert separate_own_and_curl_arguments(["-d", "--json", LEGACY_URL])[0] == ["--json"]
