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

from gateway.docgen.guide.page import (
    LANGUAGES,
    TEST_VECTOR,
    escape_markdown,
    list_error_codes_with_statuses,
)
from gateway.storage import open_store
from gateway.storage.request_counts import (
    MINUTE,
    CountKey,
    RequestCounts,
    add_request_counts,
    load_usage_summaries,
)
from mappings import OPERATIONS, UNLISTED
from tests.canaries import API_KEY, EMAIL, IBAN, PERSON, SECRET_KEY, SSN
from tests.operator_commands import open_operated_gateway, run_command, wait_until_async
from tests.running_gateway import KEY, build_settings, import_api_keys

SIGNATURES = Path(__file__).parents[1] / "signatures"
INTERPRETERS = {"python": ["python3", "-"], "js": ["node", "-"], "php": ["php"]}
ALL_OPERATIONS = [operation.name for operation in (*OPERATIONS, *UNLISTED)]
TODAY = datetime.now(UTC)


async def record_usage(
    folder: Path, *operations: str, extra_settings: str = "", **key: Any
) -> None:
    """Write a configuration and a state in which a key used these operations."""
    line = {**KEY, "name": "payroll", **key}
    settings = build_settings(folder, "http://127.0.0.1:1")
    await import_api_keys(settings, [line])
    key_columns = (line["merchant"], line["environment"], line["name"])
    async with open_store(settings.state) as store:
        counts = {
            CountKey(TODAY, MINUTE, *key_columns, name): RequestCounts(
                5, 2, 1, 9, 8, first_at=TODAY, last_at=TODAY
            )
            for name in operations
        }
        await add_request_counts(store, counts)
    (folder / "gateway.toml").write_text(
        '[environments.sandbox]\nbase_url = "https://service.example"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n{extra_settings}'
    )


async def print_guide(folder: Path, key: str = "payroll") -> str:
    return (await run_command(folder, "migrate-guide", "--key", key)).stdout


def run_python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def find_code_block(page: str, language: str) -> str:
    (code_block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(code_block)


async def test_guide_lists_only_used_operations(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await operated_gateway.gateway.import_key(
            api_key="another-key-for-tests", access_key="ANOTHER", merchant="another", name="theirs"
        )
        await operated_gateway.gateway.import_key(name="payroll")
        response = await operated_gateway.gateway.request("POST", "/v1/recipients", PERSON)
        assert response.status == 200
        await operated_gateway.gateway.request(
            "GET", f"/v1/recipients/{response.body['recipient']['id']}"
        )
        await operated_gateway.gateway.request("GET", "/v1/nowhere")
        other_key_header = {"X-API-Key": "another-key-for-tests"}
        await operated_gateway.gateway.request("GET", "/v1/batches", headers=other_key_header)

        async def are_requests_counted() -> bool:
            async with operated_gateway.open_store() as store:
                return sum(usage.requests for usage in await load_usage_summaries(store)) == 4

        await wait_until_async(are_requests_counted)
        page = await print_guide(tmp_path)
    section_names = re.findall(r'<a id="(.*)"></a>', page)
    assert sorted(section_names) == ["create_recipient", "read_recipient"]
    assert "| [`POST /v1/recipients`](#create_recipient) | 1 | 0 | 0 |" in page
    for canary in (EMAIL, IBAN, SSN, PERSON["lastName"], KEY["api_key"], KEY["secret_key"]):
        assert canary not in page


async def test_before_and_after_come_from_the_flow(tmp_path: Path) -> None:
    await record_usage(tmp_path, "create_payout_method")
    page = await print_guide(tmp_path)
    assert '"branchNum": "47261"' in page
    assert '"branchId": "47261"' in page
    assert "| `branchId` | `47261` | `accounts.bank.branchNum` | renamed |" in page
    assert "POST /v1/recipients/R-91XQ0ZXXXZ8CC0DW/accounts\n" in page


async def test_every_operation_has_before_and_after(tmp_path: Path) -> None:
    await record_usage(tmp_path, *ALL_OPERATIONS)
    page = await print_guide(tmp_path)
    sections = page.split("<a id=")[1:]
    assert len(sections) == len(ALL_OPERATIONS)
    undocumented_operations = [
        section.split('"')[1]
        for section in sections
        if "After:" not in section and "Depending" not in section
    ]
    assert undocumented_operations == []
    assert [section.split('"')[1] for section in sections if "After: no call" in section] == [
        "read_country"
    ]


async def test_guide_does_not_create_a_batch_twice(tmp_path: Path) -> None:
    """Only the gateway turns drafts into batches; the current interface has no drafts."""
    await record_usage(tmp_path, "generate_quote", "read_batch_summary", "start_batch")
    page = await print_guide(tmp_path)
    calls = page[page.index("## Calls") : page.index("## Errors")]
    assert "POST /batches`" not in calls
    assert "POST /v1/batches\n" not in calls
    assert "- `GET /balance`: if the service gives no status" in calls


async def test_guide_uses_configured_vocabulary(tmp_path: Path) -> None:
    vocabulary_settings = (
        '[vocabulary.legacy]\nwallet = "paypal"\n[vocabulary.current]\nbatch_currency = "cur"\n'
    )
    await record_usage(
        tmp_path, "create_batch", "read_wallet_balance", extra_settings=vocabulary_settings
    )
    page = await print_guide(tmp_path)
    assert "GET /v1/profile/balances/paypal" in page
    assert "| `cur` | `USD` | `sourceCurrency` | renamed |" in page


async def test_markdown_in_names_is_escaped(tmp_path: Path) -> None:
    await record_usage(tmp_path, "read_balances", name="a|b*c[x](y)")
    page = await print_guide(tmp_path, "a|b*c[x](y)")
    assert r"key a\|b\*c\[x\](y)," in page
    assert escape_markdown("<b>\n# x") == r"\<b\> \# x"


# Signing


def test_vector_was_made_by_openssl() -> None:
    vector = json.loads((SIGNATURES / "guide.json").read_text("utf-8"))
    assert {name: getattr(TEST_VECTOR, name) for name in vector} == vector
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


def run_snippet(language: str, program: str) -> str:
    if shutil.which(INTERPRETERS[language][0]) is None:
        pytest.skip(f"no {INTERPRETERS[language][0]} on this machine")
    result = subprocess.run(
        INTERPRETERS[language], input=program.encode(), capture_output=True, check=False, timeout=30
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.decode()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_snippet_produces_the_vector_signature(language: str, tmp_path: Path) -> None:
    await record_usage(tmp_path, "read_balances")
    printed_headers = run_snippet(language, find_code_block(await print_guide(tmp_path), language))
    assert f"svcsign {TEST_VECTOR.access_key}:{TEST_VECTOR.signature}" in printed_headers
    assert "X-SVC-Timestamp" in printed_headers
    assert str(TEST_VECTOR.timestamp) in printed_headers


@pytest.mark.parametrize("language", LANGUAGES)
async def test_configured_words_do_not_break_snippets(language: str, tmp_path: Path) -> None:
    vocabulary_settings = (
        '[vocabulary.current]\nscheme = "it\'s`$a"\ntimestamp_header = "X-\'$b`"\n'
    )
    await record_usage(tmp_path, "read_balances", extra_settings=vocabulary_settings)
    printed_headers = run_snippet(
        language, find_code_block(await print_guide(tmp_path), language)
    ).replace("\\'", "'")
    assert f"it's`$a {TEST_VECTOR.access_key}:{TEST_VECTOR.signature}" in printed_headers
    assert "X-'$b`" in printed_headers


@pytest.mark.parametrize(
    ("setting", "expected_text"),
    [
        ("auto", "does not say whether the signed path includes"),
        ("path", "Sign the path without its query string"),
        ("path-and-query", "Sign the path with its query string"),
    ],
)
async def test_guide_says_whether_query_is_signed(
    setting: str, expected_text: str, tmp_path: Path
) -> None:
    await record_usage(
        tmp_path, "read_balances", extra_settings=f'[upstream]\nsigned_target = "{setting}"\n'
    )
    page = await print_guide(tmp_path)
    assert expected_text in page
    sign_program = (
        find_code_block(page, "python").partition("body = ")[0]
        + """
target = "/v1/recipients?page=2"
print(signed_headers("AK", "secret", "GET", target, b"", 1700000000)["Authorization"])
"""
    )
    path = "/v1/recipients?page=2" if setting == "path-and-query" else "/v1/recipients"
    text = f"1700000000\nGET\n{path}\n\n".encode()
    assert run_python(sign_program).endswith(hmac.new(b"secret", text, "sha256").hexdigest())


# Errors, limits, and usage errors


def test_error_codes_are_those_of_both_documents() -> None:
    error_codes = {
        error_code.code: (error_code.before, error_code.after)
        for error_code in list_error_codes_with_statuses()
    }
    assert error_codes == {
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


async def test_rate_limit_is_that_of_the_key(tmp_path: Path) -> None:
    await record_usage(tmp_path, "read_balances", requests_per_hour=777)
    page = await print_guide(tmp_path)
    assert "| requests | 777 per hour for this key |" in page
    assert "| `empty_field` | 406 | **400** |" in page


async def test_unused_key_has_a_guide(tmp_path: Path) -> None:
    await record_usage(tmp_path)
    page = await print_guide(tmp_path)
    assert "| nothing | 0 | 0 | 0 | - |" in page
    assert TEST_VECTOR.signature in page


async def test_guide_is_written_to_file_and_errors_are_one_line(tmp_path: Path) -> None:
    await record_usage(tmp_path, "read_balances")
    file = tmp_path / "guide.md"
    result = await run_command(tmp_path, "migrate-guide", "--key", "payroll", "--output", str(file))
    assert result.stdout == ""
    assert "read_balances" in file.read_text("utf-8")
    result = await run_command(tmp_path, "migrate-guide", "--key", "nobody", code=2)
    assert "no key has this name" in result.output
    assert API_KEY not in result.output
    assert SECRET_KEY not in result.output
