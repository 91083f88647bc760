"""Explanations of one legacy request, made by the flow that also serves traffic."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.signing import Credentials, compute_signature
from gateway.config.sections import CurrentWords, LegacyWords
from gateway.config.settings import Settings, Words
from gateway.docgen.explain import Explanation, explain_request
from mappings.failures import Invalid
from tests.processes import build_configuration, run_installed_command
from tests.running_gateway import KEY
from tests.simulator import Service, start_simulator
from tests.transcripts import FILES_BY_OPERATION

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


@pytest.mark.parametrize("operation", FILES_BY_OPERATION)
def test_every_golden_request_can_be_explained(operation: str) -> None:
    """The explanation assumes a plain service, not the one of the case."""
    for file in FILES_BY_OPERATION[operation]:
        case = json.loads(file.read_text("utf-8"))
        if "vocabulary" in case.get("settings", {}):
            continue  # the words of another service
        request = case["request"]
        body = request.get("body")
        try:
            explanation = explain(request["method"], f"/v1{request['path']}", body)
        except Invalid:
            assert not isinstance(body, dict), file
            continue
        assert (explanation.answer is None) is not (explanation.refusal is None), file
        for call in explanation.calls:
            assert call.signed_text.startswith(f"<timestamp>\n{call.method}\n/v1/"), file


def test_each_field_shows_its_target_and_rule() -> None:
    create_call, update_call, account, *_ = explain("POST", "/v1/recipients", BUSINESS_BODY).calls
    assert [call.method for call in (create_call, update_call, account)] == [
        "POST",
        "PATCH",
        "POST",
    ]
    fields = {field.field: (field.value, field.sent_in, field.rule) for field in create_call.fields}
    assert fields["name"] == ("Kings", "name", "same")
    assert fields["governmentIds[0].value"] == ("123456789", "ssn", "renamed")
    fields = {field.field: (field.value, field.sent_in, field.rule) for field in account.fields}
    routing = ("021000021", "payout.accounts.bank.routing", "renamed")
    assert fields["branchId"] == routing
    assert fields["currency"] == ("USD", "payout.primary.currency", "renamed")
    assert fields["primary"][1:] == (None, "set by the gateway")
    assert account.section == "4.2"


def test_unsent_field_is_listed_with_reason() -> None:
    explanation = explain("POST", "/v1/recipients", BUSINESS_BODY)
    unsent_fields = dict(explanation.kept)
    assert "stored" in unsent_fields["payout.holdup.limit"]
    assert "payout.primary.method" not in unsent_fields, "it is the type of the account"
    assert any("holdup" in line for line in explanation.remembered)
    start = explain("POST", "/v1/batches/B-ABCDEFGH12345678/start-processing")
    assert start.remembered[-1] == "batch B-ABCDEFGH12345678: state, started"


def test_amount_that_a_payment_has_already_is_not_called_read_only() -> None:
    payment = {"sourceAmount": "7.13", "memo": "new", "sourceCurrency": "USD", "fees": "1.00"}
    explanation = explain("PATCH", "/v1/batches/B-1/payments/P-1", payment)
    assert [field.field for field in explanation.calls[1].fields] == ["memo"]
    assert dict(explanation.kept) == {
        "sourceAmount": "a value that the payment has already is not sent",
        "sourceCurrency": "the currency of the batch",
        "fees": "assigned by the service",
    }


def test_query_parameters_show_their_targets() -> None:
    query = "payoutMethod=bank-transfer&payoutCurrency=usd&page=2&status="
    explanation = explain("GET", f"/v1/recipients?{query}")
    fields = {
        field.field: (field.value, field.sent_in, field.rule)
        for field in explanation.calls[0].fields
    }
    assert fields["page"] == ("2", "page", "same")
    assert fields["pageSize"] == ("10", None, "set by the gateway")
    assert fields["currency"] == ("USD", "payoutCurrency", "translated")
    assert explanation.kept == []
    scan_call = explain("GET", "/v1/recipients?city=Oslo&orderBy=name").calls[0]
    assert [field.rule for field in scan_call.fields] == ["set by the gateway"] * 4
    assert scan_call.target.startswith("/v1/recipients?page=1&pageSize=250&")
    unsent_fields = dict(explain("GET", "/v1/recipients?search=lo&startDate=2026-01-01&odd=1").kept)
    assert unsent_fields["search"].startswith("applied by the gateway")
    assert unsent_fields["odd"] == "not a parameter of this request"
    assert "startDate" not in unsent_fields, "it narrows what the service lists"


def test_path_of_an_operation_has_the_words_of_the_service() -> None:
    vocabulary = {"legacy": {"wallet": "purse"}}
    explanation = explain("GET", "/v1/profile/balances/purse", vocabulary=vocabulary)
    assert explanation.operation.path == "/profile/balances/purse"


def test_batch_description_is_sent_if_endpoint_exists() -> None:
    explanation = explain("PATCH", "/v1/batches/B-ABCDEFGH12345678", {"description": "another"})
    assert [call.method for call in explanation.calls] == ["GET", "PATCH"]
    sent_names = {field.field: field.sent_in for field in explanation.calls[1].fields}
    assert sent_names["description"] == "description"
    assert not explanation.kept


def test_recipient_lookup_shows_its_source_field() -> None:
    batch_body = {"sourceCurrency": "USD", "payments": [{"recipient": {"email": "a@b.c"}}]}
    batch_body["payments"][0]["sourceAmount"] = "1.00"
    lookup_call, *_ = explain("POST", "/v1/batches", batch_body).calls
    (email, *_) = lookup_call.fields
    assert (email.field, email.sent_in) == ("email", "payments[0].recipient.email")


@pytest.mark.parametrize(
    ("signed_target", "expected_target"),
    [("path", "/v1/recipients"), ("path-and-query", None), ("auto", "/v1/recipients")],
)
def test_signed_text_includes_query_if_configured(
    signed_target: str, expected_target: str | None
) -> None:
    (call,) = explain(
        "GET", "/v1/recipients?page=2", upstream={"signed_target": signed_target}
    ).calls
    assert call.signed_text == f"<timestamp>\nGET\n{expected_target or call.target}\n\n"


@pytest.mark.parametrize("path", ["recipients/R-1/payout-methods", "profile/balances/wallet"])
def test_requested_objects_are_assumed_to_exist(path: str) -> None:
    assert explain("GET", f"/v1/{path}").refusal is None


def test_changed_payout_method_is_assumed_to_exist() -> None:
    """A client sends what changes; the country of an account that it has is not required."""
    path = "/v1/recipients/R-1/payout-methods"
    explanation = explain("PATCH", path, {"accounts": {"bank": {"accountNum": "1234567"}}})
    assert explanation.refusal is None
    call = explanation.calls[-1]
    assert (call.method, call.body) == ("PATCH", {"accountNum": "1234567", "primary": True})
    explanation = explain("PATCH", path, {"primary": {"method": "wallet", "currency": "USD"}})
    assert explanation.calls[-1].body["primary"] is True


def test_payment_named_among_the_payments_of_a_batch_is_assumed_to_exist() -> None:
    """An entry of ``payments`` with an id is an update, with whatever amount clients choose."""
    body = {"payments": [{"id": "P-1", "sourceAmount": "10.00"}]}
    explanation = explain("PATCH", "/v1/batches/B-1", body)
    assert explanation.refusal is None
    assert explanation.calls[-1].body["update_payments"] == body["payments"]


def test_refused_request_shows_errors_and_makes_no_write() -> None:
    explanation = explain("POST", "/v1/recipients", {"type": "individual"})
    assert explanation.refusal is not None
    assert {problem.field for problem in explanation.refusal.problems} == {
        "firstName",
        "lastName",
        "email",
    }
    assert [call for call in explanation.calls if call.method != "GET"] == []


def test_explain_command_describes_a_refusal(tmp_path: Path) -> None:
    recipient_body = {
        "type": "individual",
        "email": "a@shop.example",
        "firstName": "Ada",
        "lastName": {"x": 1},
    }
    explanation = explain("POST", "/v1/recipients", recipient_body)
    assert explanation.refusal is not None
    (problem,) = explanation.refusal.problems
    assert dict(explanation.kept) == {
        "type": "the request is rejected",
        "email": "the request is rejected",
        "firstName": "the request is rejected",
        "lastName.x": f"rejected: {problem.message}",
    }
    result = run_installed_command(
        "explain", "-X", "POST", "/v1/recipients", "-d", json.dumps(recipient_body), folder=tmp_path
    ).stdout
    assert (
        "The gateway rejects this request with status 406:\n    invalid_field: lastName" in result
    )
    assert "No call is made." in result


def test_explanation_names_fields_in_words_of_each_side() -> None:
    words = Words(legacy=LegacyWords(wallet="paypal"), current=CurrentWords(wallet="pp"))
    body = {
        "primary": {"method": "paypal", "currency": "USD"},
        "accounts": {"paypal": {"address": "a@example.com"}},
    }
    path = "/v1/recipients/R-1/payout-methods"
    explanation = explain("POST", path, body, vocabulary=words)
    account_fields = explanation.calls[-1].fields
    assert [(each.field, each.value, each.sent_in) for each in account_fields] == [
        ("type", "pp", "primary.method"),
        ("emailAddress", "a@example.com", "accounts.paypal.address"),
        ("primary", True, None),
    ]
    assert ("accounts.paypal.address", "a@example.com") in explanation.sent
    body["accounts"]["paypal"]["address"] = "nobody"
    explanation = explain("POST", path, body, vocabulary=words)
    assert explanation.refusal is not None
    (problem,) = explanation.refusal.problems
    assert problem.field == "accounts.paypal.address"
    assert problem.message.startswith("accounts.paypal.address ")
    assert "accounts.paypal.address" in dict(explanation.kept)


def test_explanation_uses_configured_vocabulary() -> None:
    vocabulary = Words(current=CurrentWords(batch_currency="cur", summary_path="/v1/sums/{id}"))
    explanation = explain("POST", "/v1/batches", {"sourceCurrency": "USD"}, vocabulary=vocabulary)
    assert explanation.calls[0].body["cur"] == "USD"
    assert explanation.calls[-1].target == "/v1/sums/B-EXAMPLE"


def test_signed_text_equals_text_of_the_signer() -> None:
    (call, *_) = explain("POST", "/v1/recipients", BUSINESS_BODY).calls
    body = call.signed_text.split("\n")[3].encode()
    keyed = Credentials("AK", "secret").keyed
    signature = compute_signature(keyed, 1_700_000_000, "POST", "/v1/recipients", body)
    openssl = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", "secret"],
        input=call.signed_text.replace("<timestamp>", "1700000000").encode(),
        capture_output=True,
        check=True,
    )
    assert signature == openssl.stdout.decode().split()[-1]


@pytest.mark.parametrize(
    "arguments",
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
            "/batches",
            "-H",
            "X-API-Key: never-shown",
            "-s",
            "--data-raw",
            '{"sourceCurrency":"USD"}',
        ],
    ],
)
def test_explain_command_accepts_curl_syntax(arguments: list[str], tmp_path: Path) -> None:
    result = run_installed_command("explain", "--json", *arguments, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    explanation = json.loads(result.stdout)
    assert explanation["operation"] == "create_batch"
    assert explanation["calls"][0]["body"] == {"currency": "USD", "payments": []}
    assert "never-shown" not in result.stdout
    assert "create_batch" in run_installed_command("explain", *arguments, folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
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
        (["-X", "POST", "/v1/batches"], "has no body"),
        (["-X", "POST", "/v1/batches", "-d", "@nowhere.json"], "nowhere.json"),
        (["--curl", "--json", "-X", "GET", "/v1/batches"], "either --curl or --json"),
    ],
)
def test_unexplainable_request_is_reported_in_one_line(
    arguments: list[str], expected_text: str, tmp_path: Path
) -> None:
    result = run_installed_command("explain", *arguments, folder=tmp_path)
    assert result.returncode == 2
    assert expected_text in result.stderr
    assert result.stderr.count("\n") == 1
    assert "never-shown" not in result.stderr


async def test_curl_script_is_accepted_by_the_service_and_shows_no_secret(tmp_path: Path) -> None:
    body = json.dumps(
        {"type": "individual", "firstName": "O'Neil", "lastName": "Ada", "email": "a@b.example"}
    )
    simulator = await start_simulator(service=Service(seed=1))
    try:
        (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
        script = ""
        for arguments in (
            ["-X", "POST", "/v1/recipients", "-d", body],
            ["/v1/recipients?search=a+b&page=1"],
        ):
            explained = await asyncio.to_thread(
                run_installed_command, "explain", "--curl", *arguments, folder=tmp_path
            )
            assert explained.returncode == 0, explained.stderr
            script += explained.stdout
        process = await asyncio.create_subprocess_exec(
            "sh", "-eu", "-c", script, stdout=PIPE, stderr=PIPE,
            env={**os.environ, "ACCESS_KEY": KEY["access_key"], "SECRET_KEY": KEY["secret_key"]},
        )  # fmt: skip
        output, errors = await process.communicate()
    finally:
        await simulator.stop()
    assert process.returncode == 0, errors
    created, listed, *_ = output.decode().splitlines()
    assert json.loads(created)["recipient"]["firstName"] == "O'Neil"
    assert "recipients" in json.loads(listed)
    assert KEY["secret_key"] not in script + output.decode() + errors.decode()


def test_curl_script_ends_before_a_call_with_an_example_id(tmp_path: Path) -> None:
    body = '{"sourceCurrency":"USD","payments":[]}'
    script = run_installed_command(
        "explain", "--curl", "-X", "POST", "/v1/batches", "-d", body, folder=tmp_path
    ).stdout
    assert "\nexit  # replace B-EXAMPLE below " in script
    first, rest = script.split("\nexit ")
    assert ("EXAMPLE" in first, "/v1/batch/B-EXAMPLE/summary" in rest) == (False, True)


def test_curl_script_needs_credentials_from_the_environment(tmp_path: Path) -> None:
    script = run_installed_command("explain", "--curl", "/v1/recipients", folder=tmp_path).stdout
    environment = {"PATH": os.environ["PATH"], "ACCESS_KEY": "a"}
    result = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert (result.returncode != 0, "export SECRET_KEY first" in result.stderr) == (True, True)
    # An interactive shell, which it is pasted into, goes on after an error.
    pasted = subprocess.run(
        ["sh", "-i"], input=script, capture_output=True, text=True, env=environment, check=False
    )
    assert "export SECRET_KEY first" in pasted.stderr
    assert "Traceback" not in pasted.stderr
