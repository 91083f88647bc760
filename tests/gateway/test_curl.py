"""Parsing of pasted curl commands."""

from __future__ import annotations

import pytest

from gateway.docgen.curl import InvalidCurlCommand, parse_curl, split_curl_options

URL = "https://legacy.example/v1/recipients"
KEY = "X-API-Key: never-shown"
LIST = ("GET", "/v1/recipients", b"")
CREATE = ("POST", "/v1/recipients", b'{"a":1}')
FILES = {"body.json": b'{"a":1}'}
contents = FILES.__getitem__


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-X", "POST", "/v1/recipients", "-d", '{"a":1}'], CREATE),
        (["curl", "--request", "POST", "--url", URL, "--header", KEY, "--data", '{"a":1}'], CREATE),
        (["curl", "--location", URL, "-H", KEY, "--data-raw", '{"a":1}'], CREATE),
        (["curl", URL, '-d{"a":1}'], CREATE),
        (["curl", URL, "--json", '{"a":1}'], CREATE),
        (["curl", URL, "-d", "@body.json"], CREATE),
        (["curl", URL, "--data-raw", "@x"], ("POST", "/v1/recipients", b"@x")),
        (["curl", "-sXPOST", URL, "-d", '{"a":1}'], CREATE),
        ([f"curl -X POST '{URL}' \\\n  -H '{KEY}' \\\n  -d '{{\"a\":1}}'"], CREATE),
        (["POST", "/v1/recipients", "-d", '{"a":1}'], CREATE),
        (["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", URL], LIST),
        (["curl", "--connect-timeout", "5", "--retry", "3", URL], LIST),
        (["curl", "--cacert", "/etc/ca.pem", "--user-agent", "x/1", URL], LIST),
        (["curl", "--an-option-of-later", "/some/value", URL], LIST),
        (["curl", "-e", "https://other.example/v1/batches", URL], LIST),
        (["curl", "legacy.example:8080/v1/recipients"], LIST),
        (["curl", "https://name:word@legacy.example/base/v1/recipients#top"], LIST),
        (
            ["curl", "-G", "-d", "page=2", "--data-urlencode", "search=a b", URL],
            ("GET", "/v1/recipients?page=2&search=a%20b", b""),
        ),
        (["curl", f"{URL}/?&search=&page=1"], ("GET", "/v1/recipients/?&search=&page=1", b"")),
        (["curl", "-X", "delete", f"{URL}/R-1"], ("DELETE", "/v1/recipients/R-1", b"")),
        (["curl", "https://legacy.example/v2/x"], ("GET", "/v2/x", b"")),
    ],
    ids=str,
)
def test_a_request_is_read(words: list[str], expected: tuple[str, str, bytes]) -> None:
    assert parse_curl(words, contents) == expected


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["curl", "-H", KEY], "no address was given"),
        ([f"curl -H '{KEY}"], "not closed"),
        ([f"wget --header '{KEY}'"], "no address was given"),
        (["curl", URL, "-d"], "-d needs a value"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_told_without_what_was_pasted(
    words: list[str], expected_text: str
) -> None:
    with pytest.raises(InvalidCurlCommand, match=expected_text) as raised:
        parse_curl(words, contents)
    assert "never-shown" not in str(raised.value)


def test_our_options_are_told_from_those_of_curl() -> None:
    assert split_curl_options(["--json", "curl", URL], ["--config"]) == (["--json"], ["curl", URL])
    assert split_curl_options([URL, "--json"], ["--config"]) == (["--json"], [URL])
    both = ["--json", '{"a":1}', URL, "--json", "--config", "x.toml"]
    pasted = ["--json", '{"a":1}', URL]
    assert split_curl_options(both, ["--config"]) == (["--json", "--config", "x.toml"], pasted)
    assert split_curl_options(["--config=x.toml", "--", "--json"], ["--config"]) == (
        ["--config=x.toml"],
        ["--json"],
    )
    assert split_curl_options(["-d", "--json", URL], ["--config"])[0] == ["--json"]
