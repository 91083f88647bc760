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
from tests.processes import command

CASES = [
    path
    for path in sorted((Path(__file__).parents[1] / "cases").glob("*/*.json"))
    if '"vocabulary"' not in path.read_text("utf-8")  # those use another service's vocabulary
]
KINGS = {
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


def told(method: str, path: str, body: Any = None, **settings: Any) -> Explanation:
    data = b"" if body is None else json.dumps(body).encode()
    return explain_request(Settings(**settings), method, path, data)


@pytest.mark.parametrize("file", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_golden_request_can_be_explained(file: Path) -> None:
    """The explanation assumes a plain service, not the one of the case."""
    case = json.loads(file.read_text("utf-8"))
    asked = case["request"]
    try:
        found = told(asked["method"], f"/v1{asked['path']}", asked.get("body"))
    except Invalid:
        assert not isinstance(asked.get("body"), dict)
        return
    assert (found.answer is None) is not (found.refusal is None)
    for call in found.calls:
        assert call.signed.startswith(f"<timestamp>\n{call.method}\n/v1/")


def test_each_field_says_where_it_was_sent_and_what_became_of_it() -> None:
    create, later, account, *_ = told("POST", "/v1/recipients", KINGS).calls
    assert [call.method for call in (create, later, account)] == ["POST", "PATCH", "POST"]
    fields = {one.field: (one.value, one.sent_in, one.rule) for one in create.fields}
    assert fields["name"] == ("Kings", "name", "same")
    assert fields["governmentIds[0].value"] == ("123456789", "ssn", "renamed")
    fields = {one.field: (one.value, one.sent_in, one.rule) for one in account.fields}
    routing = ("021000021", "payout.accounts.bank.routing", "renamed")
    assert fields["branchId"] == routing
    assert fields["currency"] == ("USD", "payout.primary.currency", "renamed")
    assert fields["primary"][1:] == (None, "set by the gateway")
    assert account.section == "4.2"


def test_what_is_not_sent_is_named_with_its_reason() -> None:
    found = told("POST", "/v1/recipients", KINGS)
    kept = dict(found.kept)
    assert "stored" in kept["payout.holdup.limit"]
    assert "payout.primary.method" not in kept, "it is the type of the account"
    assert any("holdup" in line for line in found.remembered)


def test_parameters_of_a_query_say_where_they_were_sent_too() -> None:
    asked = "payoutMethod=bank-transfer&payoutCurrency=usd&page=2&status="
    found = told("GET", f"/v1/recipients?{asked}")
    fields = {one.field: (one.value, one.sent_in, one.rule) for one in found.calls[0].fields}
    assert fields["page"] == ("2", "page", "same")
    assert fields["pageSize"] == ("10", None, "set by the gateway")
    assert fields["currency"] == ("USD", "payoutCurrency", "translated")
    assert found.kept == []
    scan = told("GET", "/v1/recipients?city=Oslo&orderBy=name").calls[0]
    assert [one.rule for one in scan.fields] == ["set by the gateway"] * 2
    kept = dict(told("GET", "/v1/recipients?search=lo&startDate=2026-01-01&odd=1").kept)
    assert kept["search"].startswith("applied by the gateway")
    assert kept["odd"] == "not a parameter of this request"
    assert "startDate" not in kept, "it narrows what the service lists"


def test_a_batch_s_description_is_said_to_be_changed_where_the_path_is_there() -> None:
    found = told("PATCH", "/v1/batches/B-ABCDEFGH12345678", {"description": "another"})
    assert [call.method for call in found.calls] == ["GET", "PATCH"]
    sent = {one.field: one.sent_in for one in found.calls[1].fields}
    assert sent["description"] == "description"
    assert not found.kept


def test_a_recipient_that_is_looked_up_says_by_what() -> None:
    sent = {"sourceCurrency": "USD", "payments": [{"recipient": {"email": "a@b.c"}}]}
    sent["payments"][0]["sourceAmount"] = "1.00"
    looked_up, *_ = told("POST", "/v1/batches", sent).calls
    (email, *_) = looked_up.fields
    assert (email.field, email.sent_in) == ("email", "payments[0].recipient.email")


@pytest.mark.parametrize(
    ("form", "signed"),
    [("path", "/v1/recipients"), ("path-and-query", None), ("auto", "/v1/recipients")],
)
def test_the_signed_text_has_the_query_where_that_is_set(form: str, signed: str | None) -> None:
    (call,) = told("GET", "/v1/recipients?page=2", upstream={"signed_target": form}).calls
    assert call.signed == f"<timestamp>\nGET\n{signed or call.target}\n\n"


def test_only_fields_that_an_answer_has_are_said_to_come_from_somewhere() -> None:
    read = told("GET", "/v1/recipients/R-1")
    fields = {name: (current, rule) for name, current, rule in read.answered}
    assert fields["recipient.address.city"] == ("city", "same")
    assert fields["recipient.payout.accounts.bank.routing"][0] == "branchId"
    assert fields["recipient.payout.accounts.wallet.address"] == ("emailAddress", "renamed")
    assert "recipient.currency" not in fields
    assert told("PATCH", "/v1/recipients/R-1", {"email": "a@b.c"}).answered == []
    for path, name in (
        ("batches", "batches[].amount"),
        ("recipients/R-1/payments", "payments[].memo"),
    ):
        assert name in {one[0] for one in told("GET", f"/v1/{path}").answered}


@pytest.mark.parametrize("path", ["recipients/R-1/payout-methods", "profile/balances/wallet"])
def test_what_is_asked_about_is_imagined_to_be_there(path: str) -> None:
    assert told("GET", f"/v1/{path}").refusal is None


@pytest.mark.parametrize(
    ("path", "field", "of"),
    [
        ("/v1/batches/B-1/summary", "batchSummary.enoughFunds", "amount"),
        ("/v1/batches/B-1/summary", "batchSummary.createdAt", "createdAt"),
        ("/v1/profile/balances", "balances{}.primary", "primary"),
        ("/v1/profile/balances/wallet", "balances{}.amount", "amount"),
    ],
)
def test_what_is_reckoned_here_says_so_field_by_field(path: str, field: str, of: str) -> None:
    found = told("GET", path)
    assert found.answer
    (name, inner), *_ = ((name, one) for name, one in found.answer.items() if name != "ok")
    fields = inner if name == "batchSummary" else next(iter(inner.values()))
    assert len(found.answered) == len(fields)
    assert (field, of) in {(one, current) for one, current, _ in found.answered}


def test_a_refused_request_shows_its_refusal_and_makes_no_write() -> None:
    found = told("POST", "/v1/recipients", {"type": "individual"})
    assert found.refusal is not None
    assert {one.field for one in found.refusal.problems} == {"firstName", "lastName", "email"}
    assert [call for call in found.calls if call.method != "GET"] == []


def test_a_refused_request_says_that_it_is_refused_and_why(tmp_path: Path) -> None:
    asked = {
        "type": "individual",
        "email": "a@shop.example",
        "firstName": "Ada",
        "lastName": {"x": 1},
    }
    found = told("POST", "/v1/recipients", asked)
    assert found.refusal is not None
    (problem,) = found.refusal.problems
    assert dict(found.kept) == {
        "type": "the request is rejected",
        "email": "the request is rejected",
        "firstName": "the request is rejected",
        "lastName.x": f"rejected: {problem.message}",
    }
    said = command(
        "explain", "-X", "POST", "/v1/recipients", "-d", json.dumps(asked), folder=tmp_path
    ).stdout
    assert "The gateway rejects this request with status 406:\n    invalid_field: lastName" in said
    assert "No call is made." in said


def test_the_words_are_the_service_s_own() -> None:
    words = Words(current=CurrentWords(batch_currency="cur", summary_path="/v1/sums/{id}"))
    found = told("POST", "/v1/batches", {"sourceCurrency": "USD"}, vocabulary=words)
    assert found.calls[0].body["cur"] == "USD"
    assert found.calls[-1].target == "/v1/sums/B-EXAMPLE"


def test_the_signed_text_is_what_the_signer_signs() -> None:
    (call, *_) = told("POST", "/v1/recipients", KINGS).calls
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
def test_a_request_is_read_as_curl_writes_it(words: list[str], tmp_path: Path) -> None:
    done = command("explain", "--json", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["operation"] == "create_batch"
    assert found["calls"][0]["body"] == {"currency": "USD", "payments": []}
    assert "never-shown" not in done.stdout
    assert "create_batch" in command("explain", *words, folder=tmp_path).stdout


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
def test_what_cannot_be_explained_is_one_line(
    words: list[str], expected_text: str, tmp_path: Path
) -> None:
    done = command("explain", *words, folder=tmp_path)
    assert done.returncode == 2
    assert expected_text in done.stderr
    assert done.stderr.count("\n") == 1
    assert "never-shown" not in done.stderr
