"""The explain page: a pasted request beside its translation."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from gateway.console.explaining import EXAMPLE, parse_request_text
from gateway.docgen.curl import InvalidRequestText
from tests.console import ConsoleClient, ConsoleUnderTest

pytestmark = pytest.mark.asyncio(loop_scope="module")

CREATE_CURL = """curl -X POST http://localhost:8080/v1/recipients \\
  -H "X-API-Key: a key of somebody's" -d '{"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com",
  "payout": {"primary": {"method": "bank", "currency": "USD"}, "autoswitch": {"limit": 5, "active": true},
  "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}}}}'"""


async def test_each_field_is_linked_to_its_translation(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    request_count = len(console.simulator.service.list_requests("*", "*"))
    page = await console_client.post("/explain", {"request": CREATE_CURL})
    assert page.status == 200
    source_names = dict(
        re.findall(
            r'id="sent-(\d+)"[^>]*><span class="what"><span class="name">([^<]+)<', page.text
        )
    )
    target_names = dict(
        re.findall(r'href="#sent-(\d+)".*?<span class="name">([^<]+)</span>', page.text)
    )
    assert {name: target_names[field_number] for field_number, name in source_names.items()}[
        "payout.accounts.bank.routing"
    ] == ("branchId")
    assert set(source_names) == set(target_names)
    for field_number in source_names:
        assert f'id="sent-{field_number}"' in page.text
        assert page.text.count(f'id="given-{field_number}"') == 1
    assert "payout.autoswitch.limit" in page.text
    assert "not sent: stored by the gateway" in page.text
    assert "3 current calls" in page.text
    assert "/v1/recipients/R-EXAMPLE/accounts" in page.text
    assert len(console.simulator.service.list_requests("*", "*")) == request_count


async def test_key_is_shown_only_where_it_was_pasted(console_client: ConsoleClient) -> None:
    page = await console_client.post("/explain", {"request": CREATE_CURL})
    assert '<span class="value">ada@example.com</span>' in page.text
    assert "a key of somebody" not in re.sub(
        "<textarea.*?</textarea>", "", page.text, flags=re.DOTALL
    )


async def test_example_is_explained(console_client: ConsoleClient) -> None:
    page = await console_client.post("/explain", {"request": EXAMPLE})
    assert (page.status, "3 current calls" in page.text) == (200, True)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("", "No address was given"),
        ("curl -X POST /v1/nowhere", "is not an operation of the legacy interface"),
        ("curl -X POST /v1/recipients -d '{", "Unclosed quote"),
        ("curl -X POST /v1/recipients -d '{'", "The body cannot be read: not JSON"),
        ("curl -X POST /v1/recipients -d @/etc/hostname", "Files are not read"),
        ("curl -X POST /v1/recipients -d @-", "Files are not read"),
        ("curl -X", "-X needs a value"),
        ("curl http://[", "not a valid URL"),
        ("<script>alert(1)</script>", "No address was given"),
        ("/<script>alert(1)</script>", "is not an operation"),
        (f"curl /v1/recipients -d '{' ' * 70_000}'", "The request is too long"),
    ],
)
async def test_invalid_request_is_reported_in_one_line(
    console_client: ConsoleClient, request_: str, reason: str
) -> None:
    page = await console_client.post("/explain", {"request": request_})
    assert page.status == 422
    assert reason in page.text
    assert "<script>alert" not in page.text


async def test_refused_request_shows_its_refusal(console_client: ConsoleClient) -> None:
    page = await console_client.post("/explain", {"request": "POST /v1/recipients -d '{}'"})
    assert page.status == 200
    assert "Refused with 406" in page.text


async def test_long_request_does_not_block_others(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    payments = [
        {"recipient": {"id": f"R-{number}"}, "sourceAmount": "1.00"} for number in range(600)
    ]
    body = json.dumps({"sourceCurrency": "USD", "payments": payments})
    explanation = asyncio.create_task(
        console_client.post("/explain", {"request": f"POST /v1/batches -d '{body}'"})
    )
    while not explanation.done():
        started_at = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - started_at < 2
    response = await explanation
    assert response.status == 200
    assert 'id="sent-600"' in response.text


async def test_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "body").write_text("{}")
    for option in ("-d", "--data", "--data-binary"):
        with pytest.raises(InvalidRequestText):
            parse_request_text(f"curl /v1/recipients {option} @{tmp_path}/body")
    assert parse_request_text("curl /v1/recipients --data-raw @x").body == b"@x"
