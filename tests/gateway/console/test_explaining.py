"""A pasted request side by side with what it becomes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from gateway.console.explaining import format_curl_command, parse_request_text
from gateway.docgen.curl import InvalidCurlCommand
from tests.console import Seen, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="module")

CREATE = """curl -X POST http://localhost:8080/v1/recipients \\
  -H "X-API-Key: a key of somebody's" -d '{"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com",
  "payout": {"primary": {"method": "bank", "currency": "USD"}, "autoswitch": {"limit": 5, "active": true},
  "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}}}}'"""


async def test_each_field_is_found_again_under_its_mark(seen: Seen, visitor: Visitor) -> None:
    before = len(seen.simulator.service.calls("*", "*"))
    said = await visitor.post("/explain", {"request": CREATE})
    assert said.status == 200
    sent = dict(
        re.findall(r'data-sent="(\d+)"><span class="what"><span class="name">([^<]+)<', said.text)
    )
    given = dict(re.findall(r'data-given="(\d+)">.*?<span class="name">([^<]+)</span>', said.text))
    assert {name: given[mark] for mark, name in sent.items()}["payout.accounts.bank.routing"] == (
        "branchId"
    )
    assert set(sent) == set(given)
    for mark in sent:
        assert f'id="sent-{mark}"' in said.text
        assert said.text.count(f'id="given-{mark}"') == 1
    assert "payout.autoswitch.limit" in said.text
    assert "not sent: stored by the gateway" in said.text
    assert "3 current calls" in said.text
    assert "/v1/recipients/R-EXAMPLE/accounts" in said.text
    assert len(seen.simulator.service.calls("*", "*")) == before


async def test_values_are_masked_unless_they_are_to_be_shown(visitor: Visitor) -> None:
    masked = await visitor.post("/explain", {"request": CREATE})
    shown = await visitor.post("/explain", {"request": CREATE, "values": "yes"})
    assert '<span class="value">a***@e***</span>' in masked.text
    assert '<span class="value">ada@example.com</span>' in shown.text
    assert masked.text.count("1234567") == 1  # where it was typed
    for page in (masked, shown):
        assert "a key of somebody" not in page.text.replace(page_typed(page.text), "")


def page_typed(text: str) -> str:
    typed = re.search("<textarea.*?</textarea>", text, re.DOTALL)
    assert typed
    return typed[0]


@pytest.mark.parametrize(
    ("request_", "why"),
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
async def test_what_is_no_request_is_said_in_one_line(
    visitor: Visitor, request_: str, why: str
) -> None:
    said = await visitor.post("/explain", {"request": request_})
    assert said.status == 422
    assert why in said.text
    assert "<script>alert" not in said.text


async def test_a_request_that_would_be_refused_says_how(visitor: Visitor) -> None:
    said = await visitor.post("/explain", {"request": "POST /v1/recipients -d '{}'"})
    assert said.status == 200
    assert "Refused with 406" in said.text


async def test_a_long_request_keeps_nobody_waiting(seen: Seen, visitor: Visitor) -> None:
    payments = [{"recipient": {"id": f"R-{at}"}, "sourceAmount": "1.00"} for at in range(600)]
    body = json.dumps({"sourceCurrency": "USD", "payments": payments})
    long = asyncio.create_task(
        visitor.post("/explain", {"request": f"POST /v1/batches -d '{body}'"})
    )
    while not long.done():
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < 2
    said = await long
    assert said.status == 200
    assert 'id="sent-600"' in said.text


async def test_every_example_is_explained(visitor: Visitor) -> None:
    page = await visitor.get("/explain")
    names = re.findall('<option value="([a-z_]+)">', page.text)
    assert len(names) >= 8
    for name in names:
        typed = page_typed((await visitor.get(f"/explain?example={name}")).text)
        text = re.sub("<[^>]*>", "", typed).replace("&#34;", '"').replace("&#39;", "'")
        said = await visitor.post("/explain", {"request": text})
        assert (said.status, f'<h2 id="result-title">{name} ' in said.text) == (200, True), name


async def test_a_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "body").write_text("{}")
    for option in ("-d", "--data", "--data-binary"):
        with pytest.raises(InvalidCurlCommand):
            parse_request_text(f"curl /v1/recipients {option} @{tmp_path}/body")
    assert parse_request_text("curl /v1/recipients --data-raw @x").body == b"@x"


async def test_what_is_written_as_curl_is_read_back() -> None:
    told = parse_request_text(
        format_curl_command("PATCH", "/v1/recipients/R-1?a=b&c=d", {"name": "it's"})
    )
    assert (told.method, told.target) == ("PATCH", "/v1/recipients/R-1?a=b&c=d")
    assert b"it's" in told.body
