"""The migration guide: used operations before and after, and working signature snippets."""

from __future__ import annotations

import hmac
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.docgen.guide.page import LANGUAGES, TEST_VECTOR, escape_markdown, list_error_codes
from gateway.storage import open_store
from gateway.storage.usage_rows import Count, Use, add_usage, used_since
from mappings import OPERATIONS, UNLISTED
from tests.canaries import API_KEY, EMAIL, IBAN, PERSON, SECRET_KEY, SSN
from tests.house import KEY, import_lines, settings_for
from tests.operating import eventually, post, says

SIGNATURES = Path(__file__).parents[1] / "signatures"
RUN = {"python": ["python3", "-"], "js": ["node", "-"], "php": ["php"]}
ALL = [one.name for one in (*OPERATIONS, *UNLISTED)]
TODAY = datetime.now(UTC)


async def used(folder: Path, *operations: str, more: str = "", **key: Any) -> None:
    """Write a configuration and a state in which a key used these operations."""
    line = {**KEY, "name": "payroll", **key}
    settings = settings_for(folder, "http://127.0.0.1:1")
    await import_lines(settings, [line])
    whose = (line["merchant"], line["environment"], line["name"])
    async with open_store(settings.state) as store:
        counts = {
            Use(*whose, name, TODAY.date()): Count(5, 2, 1, 9, 8, TODAY, TODAY)
            for name in operations
        }
        await add_usage(store, counts)
    (folder / "gateway.toml").write_text(
        '[environments.sandbox]\nbase_url = "https://service.example"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n{more}'
    )


async def guide(folder: Path, key: str = "payroll") -> str:
    return (await says(folder, "migrate-guide", "--key", key)).stdout


def printed(program: str) -> str:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()


def block(page: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(found)


async def test_it_tells_of_what_was_really_used_and_of_nothing_else(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await here.house.import_key(
            api_key="another-key-for-tests", access_key="ANOTHER", merchant="another", name="theirs"
        )
        await here.house.import_key(name="payroll")
        made = await here.house.ask("POST", "/v1/recipients", PERSON)
        assert made.status == 200
        await here.house.ask("GET", f"/v1/recipients/{made.body['recipient']['id']}")
        await here.house.ask("GET", "/v1/nowhere")
        theirs = {"X-API-Key": "another-key-for-tests"}
        await here.house.ask("GET", "/v1/batches", headers=theirs)

        async def counted() -> bool:
            async with here.store() as store:
                return sum(one.requests for one in await used_since(store)) == 4

        await eventually(counted)
        page = await guide(tmp_path)
    heads = re.findall(r'<a id="(.*)"></a>', page)
    assert sorted(heads) == ["create_recipient", "read_recipient"]
    assert "| [`POST /v1/recipients`](#create_recipient) | 1 | 0 | 0 |" in page
    for canary in (EMAIL, IBAN, SSN, PERSON["lastName"], KEY["api_key"], KEY["secret_key"]):
        assert canary not in page


async def test_before_and_after_are_the_flow_s_own(tmp_path: Path) -> None:
    await used(tmp_path, "create_payout_method")
    page = await guide(tmp_path)
    assert '"routing": "021000021"' in page
    assert '"branchId": "021000021"' in page
    assert "| `branchId` | `021000021` | `accounts.bank.routing` | renamed |" in page
    assert "POST /v1/recipients/R-91XQ0ZXXXZ8CC0DW/accounts\n" in page


async def test_every_operation_has_a_before_and_an_after(tmp_path: Path) -> None:
    await used(tmp_path, *ALL)
    page = await guide(tmp_path)
    sections = page.split("<a id=")[1:]
    assert len(sections) == len(ALL)
    without = [
        one.split('"')[1] for one in sections if "After:" not in one and "Depending" not in one
    ]
    assert without == []
    assert [one.split('"')[1] for one in sections if "After: no call" in one] == ["read_country"]


async def test_who_has_moved_is_not_told_to_make_a_batch_twice(tmp_path: Path) -> None:
    """Only the gateway turns drafts into batches; the current interface has no drafts."""
    await used(tmp_path, "generate_quote", "read_batch_summary", "start_batch")
    page = await guide(tmp_path)
    calls = page[page.index("## Calls") : page.index("## Errors")]
    assert "POST /batches`" not in calls
    assert "POST /v1/batches\n" not in calls
    assert "- `GET /balance`: if the service gives no status" in calls


async def test_the_words_of_a_service_are_its_own(tmp_path: Path) -> None:
    words = '[vocabulary.legacy]\nwallet = "paypal"\n[vocabulary.current]\nbatch_currency = "cur"\n'
    await used(tmp_path, "create_batch", "read_wallet_balance", more=words)
    page = await guide(tmp_path)
    assert "GET /v1/profile/balances/paypal" in page
    assert "| `cur` | `USD` | `sourceCurrency` | renamed |" in page


async def test_a_name_is_no_markup(tmp_path: Path) -> None:
    await used(tmp_path, "read_balances", name="a|b*c[x](y)")
    page = await guide(tmp_path, "a|b*c[x](y)")
    assert r"key a\|b\*c\[x\](y)," in page
    assert escape_markdown("<b>\n# x") == r"\<b\> \# x"


# Signing


def test_the_vector_is_one_that_openssl_made() -> None:
    made = json.loads((SIGNATURES / "guide.json").read_text("utf-8"))
    assert {name: getattr(TEST_VECTOR, name) for name in made} == made
    text = (
        f"{TEST_VECTOR.timestamp}\n{TEST_VECTOR.method}\n{TEST_VECTOR.target}\n{TEST_VECTOR.body}\n"
    )
    openssl = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", TEST_VECTOR.secret_key],
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    assert openssl.stdout.split()[-1].decode() == TEST_VECTOR.signature


def said(language: str, program: str) -> str:
    if shutil.which(RUN[language][0]) is None:
        pytest.skip(f"no {RUN[language][0]} on this machine")
    done = subprocess.run(
        RUN[language], input=program.encode(), capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_snippet_gives_the_vector_s_signature(language: str, tmp_path: Path) -> None:
    await used(tmp_path, "read_balances")
    given = said(language, block(await guide(tmp_path), language))
    assert f"svcsign {TEST_VECTOR.access_key}:{TEST_VECTOR.signature}" in given
    assert "X-SVC-Timestamp" in given
    assert str(TEST_VECTOR.timestamp) in given


@pytest.mark.parametrize("language", LANGUAGES)
async def test_no_word_of_a_service_breaks_a_snippet(language: str, tmp_path: Path) -> None:
    words = '[vocabulary.current]\nscheme = "it\'s`$a"\ntimestamp_header = "X-\'$b`"\n'
    await used(tmp_path, "read_balances", more=words)
    given = said(language, block(await guide(tmp_path), language)).replace("\\'", "'")
    assert f"it's`$a {TEST_VECTOR.access_key}:{TEST_VECTOR.signature}" in given
    assert "X-'$b`" in given


@pytest.mark.parametrize(
    ("setting", "expected_text"),
    [
        ("auto", "does not say whether the signed path includes"),
        ("path", "Sign the path without its query string"),
        ("path-and-query", "Sign the path with its query string"),
    ],
)
async def test_it_says_whether_the_query_is_signed(
    setting: str, expected_text: str, tmp_path: Path
) -> None:
    await used(tmp_path, "read_balances", more=f'[upstream]\nsigned_target = "{setting}"\n')
    page = await guide(tmp_path)
    assert expected_text in page
    signs = (
        block(page, "python").partition("body = ")[0]
        + """
target = "/v1/recipients?page=2"
print(signed_headers("AK", "secret", "GET", target, b"", 1700000000)["Authorization"])
"""
    )
    path = "/v1/recipients?page=2" if setting == "path-and-query" else "/v1/recipients"
    text = f"1700000000\nGET\n{path}\n\n".encode()
    assert printed(signs).endswith(hmac.new(b"secret", text, "sha256").hexdigest())


# Errors, limits, and usage errors


def test_the_errors_are_those_of_both_documents() -> None:
    found = {one.code: (one.before, one.after) for one in list_error_codes()}
    assert found == {
        "invalid_token": (401, None),
        "invalid_api_key": (403, 401),
        "not_authorized": (403, 403),
        "not_found": (404, 404),
        "invalid_status": (406, 400),
        "invalid_field": (406, 400),
        "empty_field": (406, 400),
        "expired_quote": (406, 400),
        "rate_limit_exceeded": (429, 429),
        "partner_integration_error": (None, 500),
        "internal_server_error": (500, 500),
    }


async def test_the_limit_is_the_key_s_own(tmp_path: Path) -> None:
    await used(tmp_path, "read_balances", requests_per_hour=777)
    page = await guide(tmp_path)
    assert "| requests | 777 per hour for this key |" in page
    assert "| `empty_field` | 406 | **400** |" in page


async def test_a_key_that_used_nothing_has_a_page_too(tmp_path: Path) -> None:
    await used(tmp_path)
    page = await guide(tmp_path)
    assert "| nothing | 0 | 0 | 0 | - |" in page
    assert TEST_VECTOR.signature in page


async def test_it_goes_to_a_file_and_mistakes_are_one_line(tmp_path: Path) -> None:
    await used(tmp_path, "read_balances")
    file = tmp_path / "guide.md"
    done = await says(tmp_path, "migrate-guide", "--key", "payroll", "--output", str(file))
    assert done.stdout == ""
    assert "read_balances" in file.read_text("utf-8")
    done = await says(tmp_path, "migrate-guide", "--key", "nobody", code=2)
    assert "no key has this name" in done.output
    assert API_KEY not in done.output
    assert SECRET_KEY not in done.output
