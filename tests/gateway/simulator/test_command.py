import hashlib
import hmac
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

DEMO = ("SIMULATORACCESSKEY", "simulator-secret-key")
RUN = [sys.executable, "-c", "from gateway.cli.simulate import simulate; simulate()"]


@contextmanager
def running(*arguments, lines, stdin=""):
    """Run the command and yield its process, its URL, and the lines that it printed."""
    command = [*RUN, "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdin.write(stdin)
        process.stdin.close()
        printed = [process.stdout.readline() for _ in range(lines)]
        try:
            yield process, re.search(r"http://\S+", printed[0])[0], printed
        finally:
            process.kill()


def listed(url, access_key, secret_key, query="", signed_query=""):
    target = "/v1/recipients"
    text = f"GET\n{target}{signed_query}\n\n"
    return asked(f"{url}{target}{query}", "GET", text, (access_key, secret_key))


def called(url, method, target, body=""):
    return asked(f"{url}{target}", method, f"{method}\n{target}\n{body}\n", DEMO, body)


def asked(address, method, text, pair, body=""):
    access_key, secret_key = pair
    stamp = str(int(time.time()))
    signed = f"{stamp}\n{text}".encode()
    signature = hmac.new(secret_key.encode(), signed, hashlib.sha256).hexdigest()
    request = urllib.request.Request(
        address,
        method=method,
        data=body.encode() or None,
        headers={
            "Authorization": f"svcsign {access_key}:{signature}",
            "X-SVC-Timestamp": stamp,
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.status, json.load(refused)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_takes_the_demo_pair_and_ends_on_a_signal(number):
    with running(lines=2) as (process, url, printed):
        assert url.startswith("http://127.0.0.1:")
        line = json.loads(re.search(r"\{.*\}", printed[1])[0])
        assert "keys import -" in printed[1]
        assert set(line) == {"merchant", "environment", "api_key", "access_key", "secret_key"}
        status, answer = listed(url, line["access_key"], line["secret_key"])
        assert (status, answer["meta"]["records"]) == (200, 0)
        process.send_signal(number)
        assert process.wait(10) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_it_takes_keys_and_switches():
    keys = [
        {"merchant": "acme", "environment": "live", "access_key": "AK1", "secret_key": "one"},
        {"merchant": "acme", "environment": "live", "access_key": "AK2", "secret_key": "two"},
    ]
    text = "\n".join(json.dumps({**key, "api_key": "k", "name": "n"}) for key in keys) + "\n\n"
    with running(
        *("--keys", "-", "--seed", "3", "--recipients", "40", "--lists-archived"),
        *("--signed-target", "path-and-query", "--validation-status", "406"),
        *("--account-number-with-iban", "required"),
        lines=1,
        stdin=text,
    ) as (_, url, printed):
        assert "one" not in printed[0]
        status, answer = listed(url, "AK1", "one")
        assert (status, answer["meta"]["records"]) == (200, 40)
        assert listed(url, "AK2", "two") == (status, answer)
        assert listed(url, *DEMO)[0] == 401
        assert listed(url, "AK1", "one", "?orderBy=id")[0] == 401
        assert listed(url, "AK1", "one", "?orderBy=id", "?orderBy=id")[0] == 406


def test_it_can_have_no_inferred_operations_and_answer_barely():
    with running("--no-inferred", "--bare", "--processing-seconds", "0", lines=2) as (_, url, _):
        person = (
            '{"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com",'
        )
        person += '"address": {"country": "US"},'
        person += '"account": {"type": "wallet", "emailAddress": "a@example.com"}}'
        _, answer = called(url, "POST", "/v1/recipients", person)
        paid = {"recipient": {"id": answer["recipient"]["id"]}, "amount": "1", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [paid]})
        status, answer = called(url, "POST", "/v1/batches", body)
        assert (status, set(answer["batch"])) == (200, {"id"})
        path = f"/v1/batches/{answer['batch']['id']}"
        assert called(url, "GET", path)[0] == called(url, "GET", "/v1/batches")[0] == 404
        assert called(url, "POST", f"{path}/start-processing") == (200, {"ok": True})
        status, answer = called(url, "GET", f"/v1/batch/{path[12:]}/summary")
        assert (status, answer["batchSummary"]["status"]) == (200, "processed")


def legacy_list(url, api_key):
    request = urllib.request.Request(f"{url}/v1/recipients", headers={"X-API-Key": api_key})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.status, json.load(refused)


def test_it_serves_both_faces_at_once_over_the_same_state():
    with running("--legacy-port", "0", lines=3) as (_, url, printed):
        legacy = re.search(r"http://\S+", printed[1])[0]
        assert "legacy" in printed[1]
        assert legacy != url
        line = json.loads(re.search(r"\{.*\}", printed[2])[0])
        assert legacy_list(legacy, line["api_key"])[1]["meta"]["records"] == 0
        person = '{"type": "business", "name": "Acme", "email": "acme@example.com"}'
        _, made = called(url, "POST", "/v1/recipients", person)
        _status, answer = legacy_list(legacy, line["api_key"])
        assert [each["id"] for each in answer["recipients"]] == [made["recipient"]["id"]]
        assert legacy_list(legacy, "wrong")[0] == 403


WORDS = """
[vocabulary.legacy]
wallet = "paypal"
service = "acme"
wallet_method_display = "PayPal"
[vocabulary.current]
scheme = "svcsign"
wallet = "payco"
balance_path = "/v1/funds"
"""


@pytest.mark.parametrize("way", ["named", "where it runs", "variables"])
def test_both_faces_speak_the_words_of_the_configuration(way, tmp_path, monkeypatch):
    """Each merchant has a wallet balance, which can be read without any setup."""
    arguments = ["--legacy-port", "0"]
    if way == "variables":
        for line in WORDS.split("\n[")[1:]:
            section, *assignments = line.strip().splitlines()
            for name, word in (one.split(" = ") for one in assignments):
                key = f"{section.rstrip(']').lstrip('[')}__{name}".replace(".", "__").upper()
                monkeypatch.setenv(f"PAYOUT_GATEWAY_{key}", word.strip('"'))
    else:
        (tmp_path / "gateway.toml").write_text(WORDS)
    if way == "named":
        arguments += ["--config", str(tmp_path / "gateway.toml")]
    else:
        monkeypatch.chdir(tmp_path)
    with running(*arguments, lines=3) as (_, url, printed):
        legacy = re.search(r"http://\S+", printed[1])[0]
        status, answer = called(url, "GET", "/v1/funds")
        assert (status, answer["balances"]["payco"]["type"]) == (200, "payco")
        assert called(url, "GET", "/v1/balance")[0] == 404
        person = {"type": "business", "name": "Acme", "email": "acme@example.com"}
        person["payout"] = {
            "primary": {"method": "paypal", "currency": "USD"},
            "accounts": {"paypal": {"address": "acme@example.com"}},
        }
        status, answer = legacy_ask(legacy, "POST", "/v1/recipients", person)
        assert (status, answer["recipient"]["payout"]["methodDisplay"]) == (200, "PayPal")
        status, answer = legacy_ask(legacy, "GET", "/v1/profile/balances/paypal")
        assert (status, answer["balances"]["paypal"]["amount"]) == (200, "1000000.00")
        assert legacy_ask(legacy, "GET", "/v1/profile/balances/acme")[0] == 200
        assert legacy_ask(legacy, "GET", "/v1/profile/balances/wallet")[0] == 404


def legacy_ask(url, method, path, body=None):
    data = json.dumps(body).encode() if body else None
    headers = {"X-API-Key": "simulator-api-key"}
    request = urllib.request.Request(f"{url}{path}", data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.status, json.load(refused)


def test_words_that_cannot_be_are_one_line(tmp_path):
    (tmp_path / "gateway.toml").write_text('[vocabulary.legacy]\nwallet = "bank"\n')
    done = subprocess.run(
        [*RUN, "--config", str(tmp_path / "gateway.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "vocabulary.legacy.wallet: is the name of another payout method" in done.stderr


def test_the_legacy_face_takes_the_api_keys_of_the_file():
    keys = [
        {"merchant": "acme", "environment": "live", "access_key": "AK1", "secret_key": "one"},
        {"merchant": "acme", "environment": "live", "access_key": "AK2", "secret_key": "two"},
        {"merchant": "zeta", "environment": "live", "access_key": "AK3", "secret_key": "three"},
    ]
    api_keys = [{"api_key": "first"}, {}, {"api_key": "second"}]
    text = "\n".join(json.dumps({**key, **own}) for key, own in zip(keys, api_keys, strict=True))
    arguments = ("--keys", "-", "--seed", "1", "--recipients", "9", "--legacy-port", "0")
    with running(*arguments, lines=2, stdin=text) as (_, _, printed):
        legacy = re.search(r"http://\S+", printed[1])[0]
        found = [legacy_list(legacy, key) for key in ("first", "second")]
        assert [status for status, _ in found] == [200, 200]
        ids = [{each["id"] for each in answer["recipients"]} for _, answer in found]
        assert not ids[0] & ids[1]
        assert legacy_list(legacy, "simulator-api-key")[0] == legacy_list(legacy, "")[0] == 403


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "no keys"),
        ("{}\nhush\n", "line 1 has no merchant"),
        ('{"merchant": "a", "environment": "live", "access_key": "b", "secret_key": "hush"}\n{',
         "line 2 is not JSON"),
        ('{"merchant": "a", "environment": "live", "access_key": "b", "secret_key": "hush"}\n' * 2,
         "twice"),
        ('["hush"]', "line 1 has no merchant"),
        (('{"merchant": "a", "environment": "live", "access_key": "b", "secret_key": "c", '
         '"api_key": 7}'), "line 1: api_key is not a string"),
        (('{"merchant": "a", "environment": "live", "access_key": "b", "secret_key": "c", '
         '"api_key": "hush"}\n'
         '{"merchant": "d", "environment": "live", "access_key": "e", "secret_key": "f", '
         '"api_key": "hush"}'), "is used for two merchants"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_keys_is_one_line(text, expected_text):
    done = subprocess.run(
        [*RUN, "--keys", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert expected_text in done.stderr
    assert "hush" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ports", [("--port",), ("--port", "0", "--legacy-port")])
def test_a_port_in_use_is_one_line(ports):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*RUN, *ports, port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: Cannot listen on 127.0.0.1 port {port}: the port is in use; choose another\n"
    )
