"""Explanations of one legacy request, made by the flow that also serves traffic."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.signing import Credentials, build_signature_headers
from gateway.config.settings import CurrentWords, Settings, Words
from gateway.docgen.explain import Explanation, explain_request
from mappings.failures import Invalid
from tests.processes import run_installed_command

CASES = [
    path
    for path in sorted((Path(__file__).parents[1] / "cases").glob("*/*.json"))
    if '"vocabulary"' not in path.read_text("utf-8")  # those use another service's vocabulary
]
BUSINESS_BODY = {
    "type": "business",
    "name": "Kings",
    "email": "kings@example.com",
    "ssn": "123456789",
    "language": "en",
    "payout": {
        "primary": {"method": "bank", "currency": "USD"},
        "holdup": {"limit": 5, "active": False},
        "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
    },
}


def explain(method: str, path: str, body: Any = None, **settings: Any) -> Explanation:
    data = b"" if body is None else json.dumps(body).encode()
    return explain_request(Settings(**settings), method, path, data)


@pytest.mark.parametrize("file", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_golden_request_can_be_explained(file: Path) -> None:
    """The explanation assumes a plain service, not the one of the case."""
    case = json.loads(file.read_text("utf-8"))
    recorded = case["request"]
    try:
        explained = explain(recorded["method"], f"/v1{recorded['path']}", recorded.get("body"))
    except Invalid:
        assert not isinstance(recorded.get("body"), dict)
        return
    assert (explained.answer is None) is not (explained.refusal is None)
    for call in explained.calls:
        assert call.signed.startswith(f"<timestamp>\n{call.method}\n/v1/")


def test_each_field_shows_its_target_and_rule() -> None:
    create, later, account, *_ = explain("POST", "/v1/recipients", BUSINESS_BODY).calls
    assert [call.method for call in (create, later, account)] == ["POST", "PATCH", "POST"]
    fields = {field.field: (field.value, field.sent_in, field.rule) for field in create.fields}
    assert fields["name"] == ("Kings", "name", "same")
    assert fields["governmentIds[0].value"] == ("123456789", "ssn", "renamed")
    fields = {field.field: (field.value, field.sent_in, field.rule) for field in account.fields}
    routing = ("021000021", "payout.accounts.bank.routing", "renamed")
    assert fields["branchId"] == routing
    assert fields["currency"] == ("USD", "payout.primary.currency", "renamed")
    assert fields["primary"][1:] == (None, "set by the gateway")
    assert account.section == "4.2"


def test_unsent_field_is_listed_with_reason() -> None:
    explained = explain("POST", "/v1/recipients", BUSINESS_BODY)
    unsent = dict(explained.kept)
    assert "stored" in unsent["payout.holdup.limit"]
    assert "payout.primary.method" not in unsent, "it is the type of the account"
    assert any("holdup" in line for line in explained.remembered)


def test_query_parameters_show_their_targets() -> None:
    asked = "payoutMethod=bank-transfer&payoutCurrency=usd&page=2&status="
    explained = explain("GET", f"/v1/recipients?{asked}")
    fields = {
        field.field: (field.value, field.sent_in, field.rule) for field in explained.calls[0].fields
    }
    assert fields["page"] == ("2", "page", "same")
    assert fields["pageSize"] == ("10", None, "set by the gateway")
    assert fields["currency"] == ("USD", "payoutCurrency", "translated")
    assert explained.kept == []
    scan = explain("GET", "/v1/recipients?city=Oslo&orderBy=name").calls[0]
    assert [field.rule for field in scan.fields] == ["set by the gateway"] * 2
    unsent = dict(explain("GET", "/v1/recipients?search=lo&startDate=2026-01-01&odd=1").kept)
    assert unsent["search"].startswith("applied by the gateway")
    assert unsent["odd"] == "not a parameter of this request"
    assert "startDate" not in unsent, "it narrows what the service lists"


def test_batch_description_is_sent_if_endpoint_exists() -> None:
    explained = explain("PATCH", "/v1/batches/B-ABCDEFGH12345678", {"description": "another"})
    assert [call.method for call in explained.calls] == ["GET", "PATCH"]
    sent = {field.field: field.sent_in for field in explained.calls[1].fields}
    assert sent["description"] == "description"
    assert not explained.kept


def test_recipient_lookup_shows_its_source_field() -> None:
    sent = {"sourceCurrency": "USD", "payments": [{"recipient": {"email": "a@b.c"}}]}
    sent["payments"][0]["sourceAmount"] = "1.00"
    looked_up, *_ = explain("POST", "/v1/batches", sent).calls
    (email, *_) = looked_up.fields
    assert (email.field, email.sent_in) == ("email", "payments[0].recipient.email")


@pytest.mark.parametrize(
    ("form", "signed"),
    [("path", "/v1/recipients"), ("path-and-query", None), ("auto", "/v1/recipients")],
)
def test_signed_text_includes_query_if_configured(form: str, signed: str | None) -> None:
    (call,) = explain("GET", "/v1/recipients?page=2", upstream={"signed_target": form}).calls
    assert call.signed == f"<timestamp>\nGET\n{signed or call.target}\n\n"


def test_only_fields_of_answer_have_a_source() -> None:
    read = explain("GET", "/v1/recipients/R-1")
    fields = {name: (current, rule) for name, current, rule in read.answered}
    assert fields["recipient.address.city"] == ("city", "same")
    assert fields["recipient.payout.accounts.bank.routing"][0] == "branchId"
    assert fields["recipient.payout.accounts.wallet.address"] == ("emailAddress", "renamed")
    assert "recipient.currency" not in fields
    assert explain("PATCH", "/v1/recipients/R-1", {"email": "a@b.c"}).answered == []
    for path, name in (
        ("batches", "batches[].amount"),
        ("recipients/R-1/payments", "payments[].memo"),
    ):
        assert name in {one[0] for one in explain("GET", f"/v1/{path}").answered}


@pytest.mark.parametrize("path", ["recipients/R-1/payout-methods", "profile/balances/wallet"])
def test_requested_objects_are_assumed_to_exist(path: str) -> None:
    assert explain("GET", f"/v1/{path}").refusal is None


@pytest.mark.parametrize(
    ("path", "field", "of"),
    [
        ("/v1/batches/B-1/summary", "batchSummary.enoughFunds", "amount"),
        ("/v1/batches/B-1/summary", "batchSummary.createdAt", "createdAt"),
        ("/v1/profile/balances", "balances{}.primary", "primary"),
        ("/v1/profile/balances/wallet", "balances{}.amount", "amount"),
    ],
)
def test_computed_answer_is_explained_field_by_field(path: str, field: str, of: str) -> None:
    explained = explain("GET", path)
    assert explained.answer
    (name, inner), *_ = ((name, one) for name, one in explained.answer.items() if name != "ok")
    fields = inner if name == "batchSummary" else next(iter(inner.values()))
    assert len(explained.answered) == len(fields)
    assert (field, of) in {(one, current) for one, current, _ in explained.answered}


def test_refused_request_shows_errors_and_makes_no_write() -> None:
    explained = explain("POST", "/v1/recipients", {"type": "individual"})
    assert explained.refusal is not None
    assert {problem.field for problem in explained.refusal.problems} == {
        "firstName",
        "lastName",
        "email",
    }
    assert [call for call in explained.calls if call.method != "GET"] == []


def test_explain_command_describes_a_refusal(tmp_path: Path) -> None:
    asked = {
        "type": "individual",
        "email": "a@shop.example",
        "firstName": "Ada",
        "lastName": {"x": 1},
    }
    explained = explain("POST", "/v1/recipients", asked)
    assert explained.refusal is not None
    (problem,) = explained.refusal.problems
    assert dict(explained.kept) == {
        "type": "the request is rejected",
        "email": "the request is rejected",
        "firstName": "the request is rejected",
        "lastName.x": f"rejected: {problem.message}",
    }
    result = run_installed_command(
        "explain", "-X", "POST", "/v1/recipients", "-d", json.dumps(asked), folder=tmp_path
    ).stdout
    assert (
        "The gateway rejects this request with status 406:\n    invalid_field: lastName" in result
    )
    assert "No call is made." in result


def test_explanation_uses_configured_vocabulary() -> None:
    words = Words(current=CurrentWords(batch_currency="cur", summary_path="/v1/sums/{id}"))
    explained = explain("POST", "/v1/batches", {"sourceCurrency": "USD"}, vocabulary=words)
    assert explained.calls[0].body["cur"] == "USD"
    assert explained.calls[-1].target == "/v1/sums/B-EXAMPLE"


def test_signed_text_equals_text_of_the_signer() -> None:
    (call, *_) = explain("POST", "/v1/recipients", BUSINESS_BODY).calls
    body = call.signed.split("\n")[3].encode()
    pair, words = Credentials("AK", "secret"), CurrentWords()
    headers = build_signature_headers(
        pair, words, stamp=1_700_000_000, method="POST", target="/v1/recipients", body=body
    )
    openssl = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", "secret"],
        input=call.signed.replace("<timestamp>", "1700000000").encode(),
        capture_output=True,
        check=True,
    )
    assert headers["Authorization"].endswith(openssl.stdout.decode().split()[-1])


@pytest.mark.parametrize(
    "words",
    [
        ["-X", "POST", "/v1/batches", "-d", '{"sourceCurrency":"USD"}'],
        [
            "curl",
            "-XPOST",
            "http://gateway.example/v1/batches/",
            "--data",
            '{"sourceCurrency":"USD"}',
        ],
        [
            "/v1/batches",
            "-H",
            "X-API-Key: never-shown",
            "-s",
            "--data-raw",
            '{"sourceCurrency":"USD"}',
        ],
    ],
)
def test_explain_command_accepts_curl_syntax(words: list[str], tmp_path: Path) -> None:
    result = run_installed_command("explain", "--json", *words, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    explained = json.loads(result.stdout)
    assert explained["operation"] == "create_batch"
    assert explained["calls"][0]["body"] == {"currency": "USD", "payments": []}
    assert "never-shown" not in result.stdout
    assert "create_batch" in run_installed_command("explain", *words, folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        ([], "no address was given"),
        (["GET"], "no address was given"),
        (
            ["curl -H 'X-API-Key: never-shown' https://legacy.example/v1/x"],
            "GET /v1/x is not an operation",
        ),
        (["-X"], "needs a value"),
        (["-X", "PUT", "/v1/batches"], "not an operation"),
        (["-X", "POST", "/v1/batches", "-d", "{"], "not JSON"),
        (["-X", "POST", "/v1/batches", "-d", "@nowhere.json"], "nowhere.json"),
    ],
)
def test_unexplainable_request_is_reported_in_one_line(
    words: list[str], expected_text: str, tmp_path: Path
) -> None:
    result = run_installed_command("explain", *words, folder=tmp_path)
    assert result.returncode == 2
    assert expected_text in result.stderr
    assert result.stderr.count("\n") == 1
    assert "never-shown" not in result.stderr
