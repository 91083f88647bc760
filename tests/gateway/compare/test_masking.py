"""Masking of values in reports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.compare.masking import Redactor
from gateway.compare.paths import build_header_path, parse_scenario_path
from gateway.compare.strict_json import Number
from tests.gateway.compare.fake_services import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    PlannedResponse,
    ReceivedRequest,
    run_comparison,
)

REDACTOR = Redactor((CONTROL_KEY, CANDIDATE_KEY))


@pytest.mark.parametrize(
    ("path", "value", "expected_text"),
    [
        ("payments[0].sourceAmount", "1250.00", "1250.00"),
        ("batchSummary.total.value", Number("10.50"), "10.50"),
        ("meta.records", Number("12345"), "12345"),
        ("recipient.status", "suspended", "suspended"),
        ("errors[0].code", "invalid_field", "invalid_field"),
        ("errors[0].field", "accounts.bank.routing", "accounts.bank.routing"),
        ("errors[0].field", "payments[12].sourceAmount", "payments[12].sourceAmount"),
        ("isSupplyPayment", True, "true"),
        ("processedAt", None, "null"),
        ("createdAt", "2026-03-01T10:00:00.000Z", "2026-03-01T10:00:00.000Z"),
        ("sourceCurrency", "USD", "USD"),
        ("address.country", "USA", "USA"),
        ("country.name", "Côte d'Ivoire", "Côte d'Ivoire"),
        ("accounts.bank.accountNum", "****47", "****47"),
        ("recipient.id", "R-aaaa", "R-aaaa"),
        ("accounts", {"a": 1}, "{…} 1 field"),
        ("payments", [1, 2], "[…] 2 items"),
        ("memo", "", ""),
        # fields that may describe a person
        ("recipient.email", "ada@example.com", "***@*******.***"),
        ("recipient.name", "Ada Lovelace", "*** ********"),
        ("accounts.bank.accountNum", "1234567847", "**********"),
        ("accounts.bank.accountNum", Number("1234567847"), "**********"),
        ("accounts.bank.accountNum", "1234", "****"),
        ("accounts.bank.iban", "DE89370400440532013000", "**********************"),
        ("recipient.dob", "1815-12-10", "****-**-**"),
        ("recipient.dob", "1815-12-10T00:00:00Z", "****-**-*****:**:***"),
        ("recipient.ssn", "123-45-6789", "***-**-****"),
        ("address.phone", "+1 212 555 0100", "+* *** *** ****"),
        ("errors[0].message", "ada@example.com is not known", "***@*******.*** ** *** *****"),
        ("status", "ada@example.com", "***@*******.***"),
        ("code", "DE89370400440532013000", "**********************"),
        ("sourceAmount", "Ada", "***"),
        ("methodDisplay", "Ada Lovelace", "*** ********"),
        ("unknown", "whatever", "********"),
        ("country.capital", "1234567890", "**********"),
    ],
)
def test_value_is_shown_unless_personal(path: str, value: Any, expected_text: str) -> None:
    assert REDACTOR.redact_value(parse_scenario_path(path), value)["text"] == expected_text


@pytest.mark.parametrize(
    ("target", "expected_target"),
    [
        ("/v1/recipients/R-aaaa/payout-methods", "/v1/recipients/R-aaaa/payout-methods"),
        ("/v1/geography/countries/CA", "/v1/geography/countries/CA"),
        ("/v1/recipients?page=2&orderBy=name&x", "/v1/recipients?page=2&orderBy=name&x"),
        ("/v1/recipients?search=ada%40example.com", "/v1/recipients?search=***@*******.***"),
        ("/v1/recipients?search=ada-${run}", "/v1/recipients?search=***-${run}"),
        ("/v1/recipients/${one}", "/v1/recipients/${one}"),
        ("/v1/recipients/ada@example.com", "/v1/recipients/…"),
        (f"/v1/recipients/{CONTROL_KEY}?page={CONTROL_KEY}", "/v1/recipients/…?page=(an API key)"),
    ],
)
def test_request_is_shown_without_personal_data(target: str, expected_target: str) -> None:
    assert REDACTOR.redact_target(target) == expected_target


def test_field_key_is_shown_unless_personal() -> None:
    assert REDACTOR.redact_normal_path(("balances", "USD")) == "balances.USD"
    assert REDACTOR.redact_normal_path(("by", "ada@example.com")) == 'by["***@*******.***"]'
    assert (
        REDACTOR.redact_normal_path(("by", "DE89370400440532013000"))
        == 'by["**********************"]'
    )
    assert REDACTOR.redact_normal_path(build_header_path("retry-after")) == "@header.retry-after"


@given(st.text(max_size=40), st.sampled_from(["name", "message", "status", "x", "memo", "amount"]))
def test_unknown_word_of_four_letters_is_never_shown_whole(text: str, field: str) -> None:
    canary = f"{text} Quesadilla {text}"
    assert "Quesadilla" not in REDACTOR.redact_value((field,), canary)["text"]


@given(st.text(alphabet="0123456789 -", min_size=5, max_size=30))
def test_no_digit_of_an_account_is_shown(text: str) -> None:
    assert not re.search(r"\d", REDACTOR.redact_value(("accountNum",), text)["text"])


# No canary in any report

CANARIES = {
    "key of control": CONTROL_KEY,
    "key of candidate": CANDIDATE_KEY,
    "email": "quinta.marsh@private.example",
    "name": "Quinta Marshmallow",
    "IBAN": "DE89370400440532013000",
    "account": "8812345678",
}
"""An account number is looked for where an amount may not stand: amounts are shown."""

CANARY_POSITIONS = [
    "name", "email", "status", "code", "message", "field", "amount", "currency", "country", "id",
    "type", "createdAt", "memo", "iban", "accountNum", "unknown", "language", "methodDisplay",
]  # fmt: skip


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
async def test_report_contains_no_canary_from_any_position(canary: str) -> None:
    places = [
        position for position in CANARY_POSITIONS if position != "amount" or not canary.isdigit()
    ]

    def respond(request: ReceivedRequest) -> Any:
        is_control = request.headers["x-api-key"] == CONTROL_KEY
        texts = [
            canary if is_control else f"{canary} ",
            canary if is_control else None,
            canary[::-1],
        ]
        body: dict[str, Any] = {
            position: {"a": text, "list": [text], position: text}
            for position in places
            for text in texts[: 1 + is_control]
        }
        body |= {position + "2": canary if is_control else "x" for position in places}
        body |= dict.fromkeys(places[:9], canary if is_control else f"x{canary}")
        body[canary if is_control else "other"] = {canary: 1}
        if canary.isdigit():
            body["number"] = int(canary) + is_control
        return PlannedResponse(body, headers={"Content-Type": canary if is_control else "text/x"})

    from gateway.compare.report import render_report_page

    input_text = f"GET /v1/recipients?search={canary.replace(' ', '+')}\nGET /v1/batches"
    comparison = await run_comparison(respond, respond, input_text)
    assert comparison.report["exit_code"] == 1
    assert len(comparison.report["differences"]) > 20
    for output in (
        json.dumps(comparison.report, ensure_ascii=False),
        render_report_page(comparison.report),
    ):
        assert canary not in output
        assert canary.replace(" ", "%20") not in output
        for part in canary.split():
            assert part not in output
    comparison = await run_comparison(respond, respond, input_text, show_values=True)
    unmasked_report = json.dumps(comparison.report, ensure_ascii=False)
    assert (canary in unmasked_report) == (canary not in (CONTROL_KEY, CANDIDATE_KEY))


async def test_report_of_non_json_text_contains_no_canary() -> None:
    page = f"<p>{' '.join(CANARIES.values())}</p>".encode()
    comparison = await run_comparison(
        lambda _: PlannedResponse(page, 500),
        lambda _: PlannedResponse(page + b"!", 502),
        "GET /v1/batches",
    )
    assert (
        comparison.list_differences() == [["value", "$", 1], ["status", "@status", 1]]
        or comparison.list_differences()
    )
    report_text = json.dumps(comparison.report)
    assert not [canary for canary in CANARIES.values() if canary in report_text]


@pytest.mark.parametrize(
    "target",
    ["/v1/recipients/k%2F%2Bsecret", "/v1/recipients?k%2F%2Bsecret=1", "/v1/x?a=k%2F%2Bsecret"],
)
def test_percent_encoded_key_is_masked(target: str) -> None:
    assert "secret" not in Redactor(("k/+secret",), is_unmasked=True).redact_target(target)
